"""Which whole and signed bundles a device still refuses: known as bad, for other hardware, expired, older than what ran."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

from edge_runtime.store_journal import Journal
from protocol.bundle import VerifiedBundle, check_expiry
from protocol.errors import RefusedBundleError
from protocol.manifest import Manifest

ANY = "any"


def check_acceptable(bundle: VerifiedBundle, journal: Journal, targets: Sequence[str]) -> None:
    """Refuse a bundle that must not be installed on this device.

    Args:
        bundle: The bundle that is offered.
        journal: What the store remembers.
        targets: Hardware groups of this device, besides ``any`` and its machine name.

    Raises:
        RefusedBundleError: Known as bad, older than what was good here, or for other hardware.
        IncompatibleVersionError: Expired; the clock may stand too early, but never before what was signed already.
    """
    manifest = bundle.manifest
    reason = journal.bad_reason(bundle.digest)
    if reason is not None:
        raise RefusedBundleError(f"the bundle {manifest.name} failed here before", got=reason, hint="release a corrected one")
    check_target(manifest, targets)
    check_expiry(manifest, max(time.time(), journal.time_floor))
    if manifest.bundle_version < journal.rollback_counter:
        raise RefusedBundleError(
            f"the bundle {manifest.name} is older than what ran here",
            expected=f"version {journal.rollback_counter} or newer",
            got=f"version {manifest.bundle_version}",
            hint="fedtailor edge store rollback returns to the one before",
        )


def check_target(manifest: Manifest, targets: Sequence[str]) -> None:
    """Refuse a bundle for other hardware.

    Raises:
        RefusedBundleError: It is for a group that this device does not belong to.
    """
    groups = {ANY, platform.machine(), *targets}
    if manifest.target not in groups:
        raise RefusedBundleError(
            f"the bundle {manifest.name} is for other hardware",
            expected=" or ".join(sorted(groups)),
            got=manifest.target,
            hint="name this device's group with --target if it belongs to it",
        )
