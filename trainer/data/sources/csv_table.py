"""CSV tables: one row a sample, one column the label, the others numbers; separated by comma, semicolon or tab."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from protocol.errors import DatasetError
from protocol.files import require_plain_file
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.memory import check_fits
from trainer.data.sources.table import LABEL_NAMES, dataset_from_table, label_column

DELIMITERS = ",;\t"
Row = tuple[int, list[str]]  # line number and cells


def load_csv(path: Path, options: LoadOptions) -> Dataset:
    """Return a table's features (N, F) float32 and labels; the first row may name the columns.

    Raises:
        DatasetError: It is no such table; the message names the line.
    """
    require_plain_file(path, DatasetError)
    check_fits(path, 2 * path.stat().st_size, "save it as Parquet or .npz")  # a cell takes two characters or more, and four bytes
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(DELIMITERS, key=first.count)
            lines = csv.reader(chain([first], file), delimiter=delimiter)
            return _read_rows(path, ((lines.line_num, cells) for cells in lines if cells), options)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path} cannot be read", expected="a CSV table in UTF-8", got=str(error)) from error


def _read_rows(path: Path, rows: Iterator[Row], options: LoadOptions) -> Dataset:
    """Return the data set in the rows of a table."""
    first = next(rows, None)
    if first is None:
        raise DatasetError(f"{path} is empty", expected="a CSV table")
    named = _is_header(first[1])
    columns = [cell.strip() for cell in first[1]] if named else [f"column {place}" for place in range(1, len(first[1]) + 1)]
    place = label_column(path, columns, options.label)
    features, labels = array("f"), []
    for number, cells in rows if named else chain([first], rows):
        if len(cells) != len(columns):
            raise DatasetError(f"{path}, line {number} has the wrong length", expected=f"{len(columns)} cells", got=len(cells))
        labels.append(_label(path, number, cells.pop(place)))
        features.extend(_numbers(path, number, cells))
    return dataset_from_table(path, np.array(features, np.float32).reshape(len(labels), len(columns) - 1), labels)


def _is_header(cells: list[str]) -> bool:
    """Return whether a first row names the columns: it has the name of a label, or a cell before the last that is no number."""
    return any(cell.strip().lower() in LABEL_NAMES for cell in cells) or not all(map(_is_number, cells[:-1]))


def _is_number(cell: str) -> bool:
    """Return whether a cell can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _label(path: Path, number: int, cell: str) -> str:
    """Return a label's text."""
    if not cell.strip():
        raise DatasetError(f"{path}, line {number} has no label", hint="remove or fill such rows")
    return cell.strip()


def _numbers(path: Path, number: int, cells: Iterable[str]) -> list[float]:
    """Return one row's features."""
    try:
        return [float(cell) for cell in cells]
    except ValueError as error:
        hint = "make numbers of words, and fill empty cells"
        raise DatasetError(f"{path}, line {number} holds something that is no number", got=str(error), hint=hint) from error


CSV = SourceKind(
    name="csv",
    accepts="a .csv table of numbers with a label column",
    recognises=lambda path: path.suffix.lower() in {".csv", ".tsv"},
    load=load_csv,
    options=frozenset({"label"}),
)
