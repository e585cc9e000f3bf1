from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.device_blocks import CalibrationBlock, DriftBlock, SignatureBlock
from protocol.errors import ManifestError
from protocol.manifest import Manifest
from protocol.schema import encode, parse_json, to_json
from tests.edge_runtime.tiny import graphs, manifest

PLAIN = manifest(graphs("device"), "device")
CALIBRATION = CalibrationBlock("fitted", 1.2, (0.1, -0.2, 0.3))
DRIFT = DriftBlock("mahalanobis", 64, 80.0, 40.0, 0.01)
SIGNATURE = SignatureBlock(features=True, pixels=True, class_frequencies=False, mean=(0.0, 1.0), deviation=(1.0, 2.0))


def test_blocks_come_back() -> None:
    full = replace(PLAIN, calibration=CALIBRATION, drift=DRIFT, distribution_signature=SIGNATURE)
    assert Manifest.from_bytes(full.to_bytes()) == full


def test_a_manifest_without_blocks_is_read() -> None:
    content = encode(PLAIN)
    for name in ("calibration", "drift", "distribution_signature"):
        del content[name]
    assert Manifest.from_bytes(to_json(parse_json(to_json(content)))) == PLAIN


@pytest.mark.parametrize(
    "blocks",
    [
        {"calibration": replace(CALIBRATION, bias=(0.0,))},
        {"calibration": replace(CALIBRATION, scale=0.0)},
        {"drift": replace(DRIFT, window=1)},
        {"drift": replace(DRIFT, release=80.0)},
        {"drift": replace(DRIFT, ridge=0.0)},
        {"distribution_signature": replace(SIGNATURE, deviation=(1.0, 0.0))},
        {"distribution_signature": replace(SIGNATURE, mean=())},
        {"distribution_signature": replace(SIGNATURE, mean=(1e308, 1e308))},
    ],
)
def test_impossible_blocks_are_refused(blocks: dict[str, object]) -> None:
    with pytest.raises(ManifestError):
        replace(PLAIN, **blocks)  # type: ignore[arg-type]  # fields by name


def test_drift_needs_an_embedding() -> None:
    with pytest.raises(ManifestError, match="embed"):
        replace(manifest(graphs(None), None), drift=DRIFT)
