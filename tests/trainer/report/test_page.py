"""The page: well-formed, whole, inside its frames, harmless, small, and with the figures of the run folders."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.report.made_up_runs import MadeUp, change
from tests.trainer.report.pages import Page, points_of
from trainer.report import write_report
from trainer.report.comparison import compare
from trainer.report.figures import FIGURES, percent
from trainer.runs import Run

HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b\ud800]]>"
EMBEDDING = MadeUp("hyperfedzero", embedding=3, uses="samples")


def page_of(runs: list[Run], folder: Path) -> Page:
    write_report(runs, folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def several(folder: Path, *made_up: MadeUp, seeds: int = 1) -> list[Run]:
    return [replace(each, seed=seed).write(folder / f"{each.method}-{seed}") for each in made_up for seed in range(seeds)]


VARIANTS = {
    "one run": ([MadeUp()], 1),
    "seeds": ([MadeUp(), EMBEDDING, replace(EMBEDDING, method="pfedes", uses="labels")], 5),
    "no new devices": ([MadeUp(new_devices=0)], 1),
    "one round": ([MadeUp(rounds=1)], 2),
    "one device of each kind": ([MadeUp(participants=1, new_devices=1, embedding=None)], 1),
    "collapsed": ([replace(EMBEDDING, spread=0.0)], 1),
    "one dimension": ([replace(EMBEDDING, embedding=1)], 1),
    "one class": ([MadeUp(classes=("only",))], 1),
    "long names": ([MadeUp(classes=["a name that goes on and on " * 4, "b"] * 5)], 1),
    "many classes": ([replace(EMBEDDING, classes=[f"class {place}" for place in range(100)], new_devices=20)], 2),
    "many devices": ([replace(EMBEDDING, participants=120, new_devices=80)], 2),
    "hostile names": ([replace(EMBEDDING, classes=(HOSTILE, "b"), data=HOSTILE, settings={HOSTILE: HOSTILE})], 2),
    "accuracies by round": ([MadeUp(row={"gacc": 0.5, "zacc": 0.25})], 2),
}


@pytest.fixture(params=VARIANTS, scope="module")
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    made_up, seeds = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("runs")
    return page_of(several(folder, *made_up, seeds=seeds), folder)


def test_every_drawing_stays_in_its_frame(page: Page) -> None:
    drawings = page.drawings()
    assert len(drawings) >= 6
    for drawing in drawings:
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        assert drawing.attrib["aria-label"]
        for shape in drawing.iter():
            for x, y in points_of(shape):
                assert math.isfinite(x)
                assert math.isfinite(y)
                assert -0.1 <= x <= width + 0.1, (shape.attrib, shape.text, width)
                assert -0.1 <= y <= height + 0.1, (shape.attrib, shape.text, height)


def test_nothing_is_loaded_and_nothing_runs(page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "image", "use", "a"})
    attributes = {name for _, given in page.tags for name in given}
    assert attributes.isdisjoint({"src", "href", "xlink:href", "srcset"})
    assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in page.content
    assert "@import" not in page.content
    assert re.findall(r"https?://[^\"]*", page.content) == ["http://www.w3.org/2000/svg"] * len(page.drawings())
    assert dict(page.tags)["meta"]["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_colour_is_defined_for_both_themes(page: Page) -> None:
    light, dark = re.findall(r":root\{(.*?)\}", page.content)[:2]
    assert "@media(prefers-color-scheme:dark)" in page.content
    for used in set(re.findall(r"var\(--(\w+)\)", page.content)) - {"c"}:
        assert f"--{used}:" in light
        assert f"--{used}:" in dark


def test_the_figures_are_those_of_the_run_folders(tmp_path: Path) -> None:
    runs = several(tmp_path, MadeUp(), EMBEDDING, seeds=2)
    page = page_of(runs, tmp_path)
    for run in runs:
        content = run.evaluation()
        exact = [content[name] for name in ("gacc", "pacc", "zacc", "worst_tenth")]
        exact += [content["shifted"][name] for name in ("gacc", "pacc", "zacc", "worst_tenth")]
        written = page.row(run.path.name)[5:]
        assert written[:8] == [f"{percent(value)}|" for value in exact]
        assert written[8:] == ["1,234|", "2.5|", "1.5|", "3.25|"]
        exact += [*content["participants"].values(), *content["new_devices"].values()]
        assert {repr(value) for value in exact} <= set(page.values)


def test_a_hostile_name_is_shown_and_does_not_run(tmp_path: Path) -> None:
    run = replace(EMBEDDING, classes=(HOSTILE, "b"), method=HOSTILE, data=HOSTILE).write(tmp_path / "<b>&")
    change(run.path / "engine.json", reason=HOSTILE)
    page = page_of([Run.open(run.path)], tmp_path)
    assert "<script" not in page.content
    assert "<script>alert(1)</script>\"'&" in page.text
    assert "<b>&" in page.text
    assert "\x00" not in page.content


def test_the_best_of_each_column_is_marked(tmp_path: Path) -> None:
    runs = several(tmp_path, MadeUp(), seeds=3)
    page = page_of(runs, tmp_path)
    best = [given for tag, given in page.tags if tag == "td" and given.get("class") == "best"]
    assert len(best) == 8  # accuracies; costs are all alike
    highest = max(run.evaluation()["zacc"] for run in runs)
    assert f'title="best of its column"><data value="{highest!r}">' in page.content


def test_use_of_labels_is_said(tmp_path: Path) -> None:
    assert "No method here uses labels of a new device." in page_of([MadeUp().write(tmp_path / "a")], tmp_path).text
    page = page_of([MadeUp("pfedes", uses="labels").write(tmp_path / "b"), Run.open(tmp_path / "a")], tmp_path)
    assert "Labels of a new device are used by pfedes: the others do without" in page.text
    assert page.row("b")[2] == "labelled samples"


@pytest.mark.parametrize(("spread", "words"), [(0.0, "have collapsed"), (1e-5, "have collapsed"), (1.0, None)])
def test_collapse_is_said_in_plain_words(tmp_path: Path, spread: float, words: str | None) -> None:
    text = page_of([replace(EMBEDDING, spread=spread).write(tmp_path / "run")], tmp_path).text
    assert ("collapsed" in text) == (words is not None)
    assert words is None or words in text


def test_one_direction_is_said_in_plain_words(tmp_path: Path) -> None:
    assert "have nearly collapsed" in page_of([replace(EMBEDDING, embedding=1).write(tmp_path / "run")], tmp_path).text


def test_participants_and_new_devices_have_marks_of_their_own(tmp_path: Path) -> None:
    page = page_of([EMBEDDING.write(tmp_path / "run")], tmp_path)
    maps = [drawing for drawing in page.drawings() if drawing.attrib["aria-label"].startswith("Map of")]
    kinds = [shape.tag.rpartition("}")[2] for drawing in maps for shape in drawing.iter() if shape.attrib.get("class") == "mark"]
    assert sorted(kinds) == ["circle"] * 4 + ["polygon"] * 5


def test_configurations_are_whole(tmp_path: Path) -> None:
    page = page_of([MadeUp().write(tmp_path / "run")], tmp_path)
    for row in (["settings.learning_rate", "0.1"], ["environment.git", "0123abc-dirty"], ["split.participants", "4"], ["seed", "0"]):
        assert row in page.rows
    assert ["engine that ran", "cohort"] in page.rows


def test_recorded_accuracies_are_drawn(tmp_path: Path) -> None:
    page = page_of([MadeUp(row={"gacc": 0.5}).write(tmp_path / "run")], tmp_path)
    labels = [drawing.attrib["aria-label"] for drawing in page.drawings()]
    assert "gACC over 6 rounds: fedavg ends at 50.0%" in labels
    assert not any(label.startswith("zACC") for label in labels)


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    runs = several(tmp_path, EMBEDDING, seeds=2)
    assert page_of(runs, tmp_path).content == page_of(runs, tmp_path).content


def test_twenty_devices_stay_small(tmp_path: Path) -> None:
    made_up = [replace(EMBEDDING, method=method, participants=10, new_devices=10, rounds=300) for method in ("a", "bb", "ccc", "dddd")]
    page = page_of(several(tmp_path, *made_up, seeds=5), tmp_path)
    assert len(page.content.encode()) < 2_000_000


@pytest.mark.slow
def test_two_hundred_devices_in_twenty_runs_stay_usable(tmp_path: Path) -> None:
    classes = [f"class {place}" for place in range(100)]
    made_up = [
        replace(EMBEDDING, method=method, participants=100, new_devices=100, classes=classes, rounds=300)
        for method in ("a", "bb", "ccc", "dddd")
    ]
    page = page_of(several(tmp_path, *made_up, seeds=5), tmp_path)
    assert len(page.content.encode()) < 8_000_000


def test_an_old_page_is_replaced_whole(tmp_path: Path) -> None:
    run = MadeUp().write(tmp_path / "run")
    (tmp_path / "report.html").write_text("old")
    assert "fedavg" in page_of([run], tmp_path).text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """The record holds what ``evaluation.json`` says, by every figure's name."""
    run = MadeUp().write(tmp_path / "run")
    content = json.loads((run.path / "evaluation.json").read_text())
    flat = content | {f"shifted_{name}": value for name, value in content["shifted"].items()}
    (record,) = compare([run]).records
    assert {figure.name: figure.read(record) for figure in FIGURES} == {figure.name: flat[figure.name] for figure in FIGURES}
