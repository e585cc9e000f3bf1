"""Parquet tables, read with pyarrow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError, MissingExtraError
from protocol.files import require_plain_file
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.files import REFETCH
from trainer.data.sources.memory import check_fits
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
    try:
        place = label_column(path, table.column_names, options.label)
        _check_columns(path, table, place)
        labels = [str(label) for label in table.column(place).to_pylist()]
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} holds text that is no UTF-8", got=str(error), hint=REFETCH) from error
    return dataset_from_table(path, _features(table, place), labels)


def _features(table: Any, label: int) -> NDArray[np.generic]:
    """Return all columns but the label, (N, F) uint8 or float32."""
    columns = [table.column(index) for index in range(table.num_columns) if index != label]
    dtype = np.uint8 if all(str(column.type) == "uint8" for column in columns) else np.float32
    values: NDArray[np.generic] = np.empty((table.num_rows, len(columns)), dtype)  # (N, F)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity, which is refused with its row
        for index, column in enumerate(columns):
            values[:, index] = column.to_numpy()
    return values


def _read(path: Path) -> Any:
    """Return pyarrow's table of a file that fits in memory."""
    arrow: Any = _library("pyarrow")
    parquet: Any = _library("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            check_fits(path, file.metadata.num_rows * file.metadata.num_columns * WIDEST_NUMBER, "keep fewer rows or columns")
            return file.read()
    except (arrow.ArrowException, OSError, ValueError) as error:
        got = str(error).partition("\n")[0][:160]
        raise DatasetError(f"{path} cannot be read", expected="a Parquet table", got=got, hint=REFETCH) from error


def _library(name: str) -> Any:
    """Return a module of pyarrow, which ships no complete types."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading Parquet tables needs pyarrow", hint='pip install "fedtailor[tables]"') from error


def _check_columns(path: Path, table: Any, label: int) -> None:
    """Refuse empty cells, features that are no numbers, and labels that are no single values."""
    kinds: Any = _library("pyarrow.types")
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
