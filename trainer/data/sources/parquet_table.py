"""Parquet tables, read with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from protocol.files import require_plain_file
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.files import REFETCH
from trainer.data.sources.memory import check_fits
from trainer.data.sources.optional import import_optional
from trainer.data.sources.table import dataset_from_table, label_column

WIDEST_NUMBER = 8  # bytes of a number before it becomes float32


def load_parquet(path: Path, options: LoadOptions) -> Dataset:
    """Return a table's features (N, F) and labels: uint8 when all features are bytes, float32 otherwise.

    Raises:
        DatasetError: It is no such table.
        MissingExtraError: pyarrow is not installed.
    """
    require_plain_file(path, DatasetError)
    table = _read(path)
    place = label_column(path, table.column_names, options.label)
    _check_columns(path, table, place)
    features = [table.column(index) for index in range(table.num_columns) if index != place]
    dtype = np.uint8 if all(str(column.type) == "uint8" for column in features) else np.float32
    values: NDArray[np.generic] = np.empty((table.num_rows, len(features)), dtype)  # (N, F)
    for index, column in enumerate(features):
        values[:, index] = column.to_numpy()
    return dataset_from_table(path, values, [str(label) for label in table.column(place).to_pylist()])


def _read(path: Path) -> Any:
    """Return pyarrow's table of a file that fits in memory."""
    arrow: Any = import_optional("pyarrow", "reading Parquet tables", "tables")
    parquet: Any = import_optional("pyarrow.parquet", "reading Parquet tables", "tables")
    try:
        with parquet.ParquetFile(path) as file:
            check_fits(path, file.metadata.num_rows * file.metadata.num_columns * WIDEST_NUMBER, "keep fewer rows or columns")
            return file.read()
    except (arrow.ArrowException, OSError, ValueError) as error:
        got = str(error).partition("\n")[0][:160]
        raise DatasetError(f"{path} cannot be read", expected="a Parquet table", got=got, hint=REFETCH) from error


def _check_columns(path: Path, table: Any, label: int) -> None:
    """Refuse empty cells, features that are no numbers, and labels that are no single values."""
    kinds: Any = import_optional("pyarrow.types", "reading Parquet tables", "tables")
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        if column.null_count:
            raise DatasetError(f"{path}: column {name!r} has empty cells", got=column.null_count, hint="remove or fill such rows")
        if index == label and kinds.is_nested(column.type):
            raise DatasetError(f"{path}: column {name!r} cannot be a label", expected="words or whole numbers", got=column.type)
        if index != label and not (kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type)):
            raise DatasetError(f"{path}: column {name!r} is no feature", expected="numbers", got=column.type)


PARQUET = SourceKind(
    name="parquet",
    accepts="a .parquet table of numbers with a label column",
    recognises=lambda path: path.suffix.lower() in {".parquet", ".pq"},
    load=load_parquet,
    options=frozenset({"label"}),
)
