"""CSV and Parquet tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import DatasetError, MissingExtraError
from trainer.data.datasets import load_dataset
from trainer.data.sources import memory


def write(folder: Path, text: str, name: str = "table.csv") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    "text",
    [
        "a,b,label\n1,2,yes\n3,4.5,no\n",
        "a,b,Class\r\n1,2,yes\r\n3,4.5,no\r\n",
        "target,a,b\nyes,1,2\nno,3,4.5\n\n",
        "a;b;kind\n1;2;yes\n3;4.5;no\n",
        "a\tb\tkind\n1\t2\tyes\n3\t4.5\tno\n",
        '\ufeff"a","b","kind"\n"1","2","yes"\n"3","4.5","no"\n',
        "1,2,yes\n3,4.5,no",
        "0,1,label\n1,2,yes\n3,4.5,no\n",
    ],
)
def test_the_label_column_is_found(tmp_path: Path, text: str) -> None:
    dataset = load_dataset(write(tmp_path, text))
    np.testing.assert_array_equal(dataset.samples, np.array([[1, 2], [3, 4.5]], np.float32))
    assert (dataset.name, dataset.classes, dataset.labels.tolist()) == ("table", ("no", "yes"), [1, 0])
    assert (str(dataset.samples.dtype), dataset.minimum, dataset.maximum) == ("float32", 0.0, 4.5)


def test_the_label_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "species,size,label\n10,1,0\n9,2,0\n")
    dataset = load_dataset(f"{path}?label=species")
    assert (dataset.classes, dataset.labels.tolist()) == (("9", "10"), [1, 0])
    with pytest.raises(DatasetError, match="has no column 'colour': expected one of its columns, got species, size, label"):
        load_dataset(f"csv:{path}?label=colour")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is empty"),
        ("a,label\n", "has no rows"),
        ("label\n1\n", "too few columns"),
        ("a,label\n1,x\n2\n", "line 3 has the wrong length"),
        ("a,label\n1,x\n2,y,z\n", "line 3 has the wrong length"),
        ("a,label\n1,x\nred,y\n", "line 3 holds something that is no number.*'red'"),
        ("a,label\n1,x\n,y\n", "line 3 holds something that is no number"),
        ("a,label\n1,x\n2, \n", "line 3 has no label"),
        ("a,label\n1,x\nnan,y\n", "NaN or infinity: got in row 2"),
        ("a,label\n1,x\n1e99,y\n", "NaN or infinity: got in row 2"),
        ("a,label\n1,x\n2,x\n", "classes cannot be told apart"),
        ("a,label\n" + "1" * 200_000 + ",x\n", "field larger than field limit"),
    ],
)
def test_a_wrong_table_names_the_line(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        load_dataset(write(tmp_path, text))


def test_a_table_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"a,label\n1,\xff\n")
    with pytest.raises(DatasetError, match="CSV table in UTF-8"):
        load_dataset(str(tmp_path / "table.csv"))


def test_a_table_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 10)
    with pytest.raises(DatasetError, match="too large for memory"):
        load_dataset(write(tmp_path, "a,label\n1,x\n2,y\n"))


def test_missing_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"needs pyarrow.*fedtailor\[tables\]"):
        load_dataset(write(tmp_path, "PAR1", "table.parquet"))


def write_parquet(folder: Path, **columns: Any) -> str:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), folder / "table.parquet")
    return str(folder / "table.parquet")


def test_parquet_tables_are_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, label=["yes", "no"], a=[1, 2], b=[0.5, -1.0], c=[True, False])
    dataset = load_dataset(path)
    np.testing.assert_array_equal(dataset.samples, np.array([[1, 0.5, 1], [2, -1, 0]], np.float32))
    assert (dataset.classes, dataset.labels.tolist(), str(dataset.samples.dtype)) == (("no", "yes"), [1, 0], "float32")


def test_bytes_in_parquet_stay_bytes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, a=np.array([1, 255], np.uint8), b=np.array([0, 3], np.uint8), digit=[10, 9])
    dataset = load_dataset(path)
    assert (str(dataset.samples.dtype), dataset.maximum, dataset.classes) == ("uint8", 255.0, ("9", "10"))
    assert load_dataset(f"{path}?label=a").sample_shape == (2,)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"a": [1, None], "label": [0, 1]}, "column 'a' has empty cells"),
        ({"a": [1, 2], "label": [0, None]}, "column 'label' has empty cells"),
        ({"a": ["x", "y"], "label": [0, 1]}, "column 'a' is no feature"),
        ({"a": [[1], [2]], "label": [0, 1]}, "column 'a' is no feature"),
        ({"a": [1, 2], "label": [[0], [1]]}, "cannot be a label"),
        ({"a": [1.0, float("inf")], "label": [0, 1]}, "NaN or infinity"),
        ({"label": [0, 1]}, "too few columns"),
    ],
)
def test_wrong_parquet_columns_are_named(tmp_path: Path, columns: dict[str, Any], word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        load_dataset(write_parquet(tmp_path, **columns))


def test_a_truncated_parquet_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write_parquet(tmp_path, a=[1, 2], label=[0, 1]))
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 10)
    with pytest.raises(DatasetError, match="too large for memory"):
        load_dataset(str(path))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DatasetError, match="expected a Parquet table"):
        load_dataset(str(path))
