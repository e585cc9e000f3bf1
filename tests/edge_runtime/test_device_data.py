from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.device_data import DeviceData
from protocol.errors import InputError, LabelError, SampleDtypeError
from tests.edge_runtime.tiny import graphs, manifest, raw_samples


@pytest.fixture
def data(tmp_path: Path) -> DeviceData:
    np.save(tmp_path / "support.npy", raw_samples(6))
    np.save(tmp_path / "query.npy", raw_samples(4, seed=1))
    return DeviceData(tmp_path, manifest(graphs("device"), "device"))


def test_a_device_without_labels(data: DeviceData) -> None:
    np.testing.assert_array_equal(data.support(), raw_samples(6))
    np.testing.assert_array_equal(data.query(), raw_samples(4, seed=1))
    assert data.labels() is None
    assert data.query_labels() is None


def test_labels_come_as_indices(data: DeviceData) -> None:
    np.save(data.folder / "labels.npy", np.array([0, 1, 2, 2, 1, 0], np.uint8))
    np.save(data.folder / "query_labels.npy", np.array([0, 1, 2, 2]))
    labels, query_labels = data.labels(), data.query_labels()
    assert labels is not None
    assert query_labels is not None
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert query_labels.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize(
    "labels", [np.zeros(5, np.int64), np.zeros((6, 1), np.int64), np.zeros(6), np.full(6, 3), np.full(6, -1), np.array(["cat"] * 6)]
)
def test_labels_that_do_not_fit_are_refused(data: DeviceData, labels: np.ndarray) -> None:
    np.save(data.folder / "labels.npy", labels)
    with pytest.raises(LabelError):
        data.labels()


def test_a_damaged_label_file_is_refused(data: DeviceData) -> None:
    (data.folder / "labels.npy").write_bytes(b"not numpy")
    with pytest.raises(LabelError, match="cannot be read"):
        data.labels()


def test_samples_are_checked_against_the_manifest(data: DeviceData) -> None:
    np.save(data.folder / "query.npy", raw_samples(4).astype(np.float32))
    with pytest.raises(SampleDtypeError):
        data.query()


def test_an_absent_file_is_refused(data: DeviceData) -> None:
    (data.folder / "support.npy").unlink()
    with pytest.raises(InputError):
        data.support()
