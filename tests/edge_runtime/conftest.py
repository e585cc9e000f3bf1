"""Bundles that the device's tests share; made once, never written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.bundle import Bundle
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import Scope, write_tiny


@pytest.fixture(scope="session")
def release_key() -> PrivateKey:
    return PrivateKey.generate()


@pytest.fixture(scope="session")
def coordinator_key() -> PrivateKey:
    return PrivateKey.generate()


@pytest.fixture(scope="session")
def bundle_paths(
    tmp_path_factory: pytest.TempPathFactory, release_key: PrivateKey, coordinator_key: PrivateKey
) -> dict[Scope | None, Path]:
    """Return a bundle for each scope, and one of a method without personalization."""
    root = tmp_path_factory.mktemp("bundles")
    scopes: tuple[Scope | None, ...] = ("device", "sample", None)
    return {scope: write_tiny(root / str(scope), release_key, scope, coordinator_key=coordinator_key.public.hex) for scope in scopes}


@pytest.fixture
def bundle(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey) -> Bundle:
    """Return an open bundle of scope ``device``."""
    return Bundle.open(bundle_paths["device"], release_key.public)


@pytest.fixture
def trusted_file(tmp_path: Path, release_key: PrivateKey) -> Path:
    """Return the release key's public file."""
    path = tmp_path / "release.pub"
    release_key.public.save(path)
    return path
