"""Tables and pictures of a cut."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.description import DeviceDescription, describe
from trainer.data.federation import Answers, FederatedData, SplitSettings, split_dataset
from trainer.data.picture import class_colour, partition_picture

SVG = "{http://www.w3.org/2000/svg}"


def cut(support_size: int | None = None) -> tuple[Dataset, FederatedData, Answers]:
    labels = np.random.default_rng(0).integers(0, 3, 400)
    dataset = Dataset("made", np.zeros((400, 2), np.uint8), labels, ("a", "b & <c>", "d"), 0, 255)
    return (dataset, *split_dataset(dataset, SplitSettings(3, 2, 0.5, 30, support_size, 3, validation_share=0.2)))


def test_counts_add_up() -> None:
    dataset, data, answers = cut()
    rows = describe(data, answers)
    assert [row.device for row in rows] == ["participant-00", "participant-01", "participant-02", "new-00", "new-01"]
    assert [row.participates for row in rows] == [True, True, True, False, False]
    assert sum(row.samples for row in rows) == 400
    assert all(sum(row.class_counts) == row.samples for row in rows)
    totals = np.sum([row.class_counts for row in rows], axis=0)
    np.testing.assert_array_equal(totals, np.bincount(dataset.labels))
    assert all((row.validation > 0) == row.participates for row in rows)


def test_without_support_labels_only_the_query_is_counted() -> None:
    _, data, answers = cut(support_size=8)
    rows = describe(data, Answers(answers.query_labels))
    assert [row.training for row in rows if not row.participates] == [8, 8]
    assert all(sum(row.class_counts) == row.test for row in rows if not row.participates)


def test_no_devices_give_no_rows() -> None:
    assert describe(FederatedData((), ()), Answers({})) == ()
    assert ET.fromstring(partition_picture((), ())).tag == f"{SVG}svg"  # noqa: S314 # made here


def test_the_picture_has_one_box_a_class_and_device() -> None:
    dataset, data, answers = cut()
    rows = describe(data, answers)
    root = ET.fromstring(partition_picture(rows, dataset.classes, "A & B"))  # noqa: S314 # made here
    boxes = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(boxes) == sum(count > 0 for row in rows for count in row.class_counts)
    assert {box.get("fill") for box in boxes} == {class_colour(place) for place in range(3)}
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"A & B", "b & <c>", "participant-00", "new-01"} <= set(texts)


def test_the_picture_is_self_contained_and_repeatable() -> None:
    dataset, data, answers = cut()
    picture = partition_picture(describe(data, answers), dataset.classes)
    assert picture == partition_picture(describe(data, answers), dataset.classes)
    assert "href" not in picture
    assert "url(" not in picture


def test_many_classes_have_a_short_legend_and_colours_of_their_own() -> None:
    row = DeviceDescription("participant-00", True, 200, 0, 0, (1,) * 200)
    picture = partition_picture([row], [f"class {place}" for place in range(200)])
    assert "and 180 more classes" in picture
    assert len({class_colour(place) for place in range(200)}) == 200
