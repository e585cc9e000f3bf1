"""Reading files and listing folders; whatever goes wrong becomes an error that names the place."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import DatasetError
from protocol.files import require_plain_file

REFETCH = "fetch the file again"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file without blanks at either end, empty ones dropped.

    Raises:
        DatasetError: It is absent or no text.
    """
    require_plain_file(path, DatasetError)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read", expected="a text file", got=str(error), hint=REFETCH) from error
    return [line.strip() for line in lines if line.strip()]


def entries(folder: Path) -> list[Path]:
    """Return what a folder holds in the order of names, hidden things left out.

    Raises:
        DatasetError: It is absent or no folder.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"{folder} cannot be listed", expected="a folder", got=error.strerror) from error


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder in the order of names, hidden ones left out."""
    return [path for path in entries(folder) if path.is_dir()]


def require_files(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder that lacks a file.

    Raises:
        DatasetError: It names the first absent file.
    """
    for name in names:
        if not (folder / name).is_file():
            raise DatasetError(f"{folder / name} is missing", expected=f"a folder with {', '.join(names)}", hint="unpack the archive again")
