"""Scales, ticks, components and markup against known cases."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.report.confusion import shares_of
from trainer.report.drawing import Scale, round_step
from trainer.report.embeddings import principal_components
from trainer.report.markup import Markup, element, joined, shortened


def test_ticks_are_round_and_inside() -> None:
    assert Scale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert Scale(1, 20, 0, 100).ticks() == [5, 10, 15, 20]
    assert Scale(3, 3, 0, 100).ticks() == [3]
    assert round_step(0.0021) == pytest.approx(0.0025)
    assert round_step(0) == 0


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_a_scale_keeps_its_values_between_its_ends(low: float, span: float) -> None:
    scale = Scale(low, low + span, 10, 200)
    assert scale.at(low) == pytest.approx(10)
    assert all(10 - 1e-6 <= scale.at(tick) <= 200 + 1e-6 for tick in scale.ticks())
    assert len(scale.ticks()) <= 7


@given(st.text(), st.text())
def test_any_text_survives_markup(content: str, value: str) -> None:
    found = ET.fromstring(element("text", content, class_=value))  # noqa: S314  # our own
    cleaned = "".join(found.itertext())
    assert len(cleaned) == len(content.replace("\r\n", "\n"))
    assert found.get("class") is not None


def test_text_is_escaped_once() -> None:
    assert element("b", "<&>") == "<b>&lt;&amp;&gt;</b>"
    assert element("b", element("i", "<")) == "<b><i>&lt;</i></b>"
    assert joined(["<", Markup("<br>")], ", ") == "&lt;, <br>"
    assert shortened("abcdef", 4) == "abc…"


def test_components_of_a_line_lie_on_it() -> None:
    places, shares = principal_components(np.outer(np.arange(5.0), [3.0, 4.0, 0.0]))
    assert places[:, 0] == pytest.approx([-10, -5, 0, 5, 10])
    assert places[:, 1] == pytest.approx(np.zeros(5), abs=1e-9)
    assert shares == pytest.approx([1, 0])


def test_components_keep_distances_of_a_plane() -> None:
    plane = np.random.default_rng(0).normal(size=(7, 2)) @ np.linalg.qr(np.random.default_rng(1).normal(size=(6, 2)))[0].T
    places, shares = principal_components(plane)
    before = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    assert np.linalg.norm(places[:, None] - places[None], axis=2) == pytest.approx(before)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] >= shares[1]


def test_equal_embeddings_lie_on_one_point() -> None:
    places, shares = principal_components(np.ones((4, 3)))
    assert not places.any()
    assert not shares.any()


def test_confusion_shares_are_of_each_true_class() -> None:
    found = shares_of(np.array([[3, 1, 0], [0, 0, 0], [2, 2, 4]]))
    assert found.tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0.25, 0.5]]
