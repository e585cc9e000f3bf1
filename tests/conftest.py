"""What every test shares: hypothesis profiles, and one thread for each test process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.releases import Release

# Two test processes share two cores: libraries that start a thread for each core would only fight.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: the first call of a compiled or lazily imported function is slow and says nothing.
settings.register_profile("small", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "small"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take every thorough test for a slow one, before tests are chosen by their marks."""
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return a bundle exported from a short real run on the digits, with the keys that belong to it."""
    from tests.releases import make_release  # only a server can make one

    return make_release(tmp_path_factory.mktemp("release"))
