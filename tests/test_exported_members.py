"""Every package says what it exports, in order, and keeps its word."""

from __future__ import annotations

import importlib

import pytest

from tests.source_tree import PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_members(package: str) -> None:
    module = importlib.import_module(package)
    names: list[str] = module.__all__
    assert names == sorted(names)
    assert len(names) == len(set(names))
    missing = [name for name in names if not hasattr(module, name)]
    assert missing == []
    assert set(names) <= set(dir(module))
    assert not any(name.startswith("_") for name in names)
