"""``.npz`` files with ``samples`` and ``labels``, and perhaps ``classes``, ``domains`` and ``domain_names``."""

from __future__ import annotations

import zipfile
from pathlib import Path

from protocol.arrays import read_arrays
from protocol.errors import DatasetError
from protocol.files import require_plain_file
from trainer.data.dataset import Dataset
from trainer.data.sources.arrays import dataset_from_arrays
from trainer.data.sources.base import SourceKind
from trainer.data.sources.memory import check_fits

RESAVE = "save it with numpy.savez, without objects"


def load_npz(path: Path) -> Dataset:
    """Return the data set in a file that numpy.savez wrote; see ``dataset_from_arrays``."""
    require_plain_file(path, DatasetError)
    check_fits(path, _unpacked_size(path), "save fewer samples, or uint8 instead of float32")
    try:
        arrays = read_arrays(path, DatasetError)
    except RuntimeError as error:  # zipfile, of a member that is encrypted or packed in an unknown way
        raise DatasetError(f"{path} cannot be read", got=str(error), hint=RESAVE) from error
    return dataset_from_arrays(path.stem, path, arrays)


def _unpacked_size(path: Path) -> int:
    """Return how many bytes the arrays in a file take."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read", got=str(error), hint=RESAVE) from error


NPZ = SourceKind(
    name="npz",
    accepts="an .npz file with samples and labels",
    recognises=lambda path: path.suffix == ".npz",
    load=lambda path, _: load_npz(path),
)
