"""Every kind of evil is refused with a reason of its own, and the same bundle without the fault opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.evil import folders, graphs, manifests, signing, tensors
from tests.protocol.evil.drafts import Draft, Kind

TABLES = {
    "folders": folders.KINDS,
    "signing": signing.KINDS,
    "manifests": manifests.KINDS,
    "graphs": graphs.KINDS,
    "tensors": tensors.KINDS,
}
KINDS: dict[str, Kind] = {f"{table}: {name}": kind for table, kinds in TABLES.items() for name, kind in kinds.items()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_evil_is_refused_for_its_own_reason(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(kind.error, match=kind.phrase) as caught:
        Draft(**kind.evil).open(tmp_path / "bundle")
    assert type(caught.value) is kind.error
    assert "\n" not in str(caught.value).strip()
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_same_bundle_without_the_fault_opens(kind: Kind, tmp_path: Path) -> None:
    assert Draft(**kind.twin).open(tmp_path / "bundle").manifest.name


def test_kinds_differ_and_are_many() -> None:
    assert len(KINDS) == sum(map(len, TABLES.values())) >= 200
    assert all(kind.evil is not kind.twin for kind in KINDS.values())
