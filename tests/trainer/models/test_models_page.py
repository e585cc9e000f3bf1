"""The page about models tells the truth: its table, and its own model."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from trainer.models.registry import build_model

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\S+)` \| .* \| ([0-9,]+) \| ([0-9x ]+) \|$", PAGE, re.MULTILINE)


def test_the_table_was_found() -> None:
    classifiers = ["mlp", "mlp-200-100", "lenet-s", "lenet", "zenkenet", "resnet20", "resnet32", "cnn", "vit"]
    unlike = ["small-cnn", "residual-cnn", "cnn-1", "proxy-strided", "proxy-pooled"]
    small = ["vit-tiny", "mixer", "mixer-tiny"]
    assert [name for name, _, _ in ROWS] == classifiers + unlike + small


@pytest.mark.parametrize(("name", "weights", "shape"), ROWS)
def test_the_table_counts_weights(name: str, weights: str, shape: str) -> None:
    model = build_model(name, tuple(int(side) for side in shape.split(" x ")), 10)
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" == weights


def test_the_own_model_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if block.startswith("# my_models.py"))
    (tmp_path / "my_models.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    assert sum(parameter.numel() for parameter in build_model("my_models:small", (28, 28), 10).parameters()) == 25_450
