"""The model card tells what the run recorded, and shows hostile names as nothing but text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from export.card import data_entry, model_card
from export.markdown import escape, table
from protocol.bundle import open_bundle
from tests.releases import Release
from trainer.runs import Run

markdown_it = pytest.importorskip("markdown_it", reason="needs markdown-it-py, which comes with rich")

HOSTILE = [
    "<script>alert(1)</script>",
    "[click](https://evil.example)",
    "![x](http://evil.example/x.png)",
    "https://evil.example/a",
    "www.evil.example",
    "someone@evil.example",
    "| --- | --- |",
    "**bold** _it_ ~~gone~~ `code`",
    "# heading",
    "</td></table><img src=x onerror=alert(1)>",
    "&lt;b&gt; &amp; &copy;",
    "back\\slash \\| \\`",
    "javascript:alert(1)",
    "$x^2$",
]


def render(text: str) -> str:
    """Return HTML as a reader with tables, bare addresses and struck text makes it, raw HTML let through."""
    return str(markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


@pytest.fixture
def card(release: Release) -> str:
    return open_bundle(release.bundle, release.release_key.public).files["README.md"].decode()


def test_it_tells_what_the_run_recorded(card: str, release: Release) -> None:
    evaluation, split = release.run.evaluation(), release.run.config.split
    for figure in ("zacc", "pacc", "gacc"):
        assert f"{evaluation[figure]:.1%}" in card
        assert f"{evaluation['shifted'][figure]:.1%}" in card
    assert f"{min(evaluation['new_devices'].values()):.1%}" in card
    assert f"{evaluation['bytes_up']:,}" in card
    counts = [sum(each["class_counts"]) for each in release.run.devices()["devices"].values() if each["participant"]]
    assert f"{split.participants}, with {sum(counts):,} " in card
    assert f"dirichlet, concentration {split.concentration:g}" in card
    for name in ("Use on a device", "Accuracy", "Data", "Method", "Graphs", "Cost of training", "Limits", "Made with"):
        assert f"## {name}" in card
    assert "learning\\_rate" in card
    html = render(card.split("---\n", 2)[2])
    assert html.count("<table>") == 6
    assert "|" not in re.sub(r"<pre>.*?</pre>", "", html, flags=re.DOTALL)


def test_the_manifest_names_the_data_and_nobodys_folders(release: Release) -> None:
    entry = open_bundle(release.bundle, release.release_key.public).manifest.data
    assert entry is not None
    assert (entry.name, entry.participants) == ("digits", release.run.config.split.participants)
    elsewhere = Run(release.run.path, replace(release.run.config, data="/home/alice/secret project/photos/"))
    assert data_entry(elsewhere).name == "photos"
    opened = open_bundle(release.bundle, release.release_key.public)
    assert b"alice" not in model_card(opened.manifest, opened.files, elsewhere)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    html = render("\n".join(["before", "", *table(("name", "value"), [(text, "1")])]))
    inside = re.search(r"<td>(.*?)</td>\n<td>1</td>", html, re.DOTALL)
    assert inside is not None, html
    assert "<" not in inside[1]
    shown = inside[1].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&#39;", "'").replace("&amp;", "&")
    assert shown == text.strip()


def test_bare_addresses_are_broken_up() -> None:
    assert not re.search(r"https?://|www\.|\w@\w", " ".join(map(escape, HOSTILE)))


def test_nothing_breaks_the_line() -> None:
    assert escape("a\nb\x1b[2J\u202e\u2028") == r"a\\nb\\x1b\[2J\\u202e\\u2028"


def test_hostile_classes_do_nothing_in_a_whole_card(release: Release) -> None:
    opened = open_bundle(release.bundle, release.release_key.public)
    evil = replace(opened.manifest, name=HOSTILE[0], classes=tuple(each[:100] for each in HOSTILE[:10]))
    html = render(model_card(evil, opened.files, release.run).decode().split("---\n", 2)[2])
    assert not re.search(r"<(script|img|a|h1 .*|b)\b", html)
    assert html.count("<table>") == 6
    assert "&lt;script&gt;" in html


def test_the_card_does_not_depend_on_the_clock(release: Release, tmp_path: Path) -> None:
    opened = open_bundle(release.bundle, release.release_key.public)
    assert model_card(opened.manifest, opened.files, release.run) == opened.files["README.md"]
