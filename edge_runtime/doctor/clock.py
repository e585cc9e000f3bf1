"""Does the clock tell the time? Small devices without a battery wake up in 1970."""

from __future__ import annotations

import time

from edge_runtime.doctor.findings import Finding, passed
from protocol.manifest import Manifest

NEVER_BEFORE = 1_704_067_200  # 2024-01-01: this program is younger
TOLERANCE_SECONDS = 300


def check_clock(manifest: Manifest | None, now: float | None = None) -> Finding:
    """Compare the clock with the bundle's creation and expiry.

    Args:
        manifest: The bundle's manifest, or None.
        now: Seconds since 1970; the clock's when None.
    """
    now = time.time() if now is None else now
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "set it (timedatectl set-ntp true): TLS and signed messages need it; a store's expiry then counts from the bundle's creation"
    earliest = NEVER_BEFORE if manifest is None else max(NEVER_BEFORE, manifest.created - TOLERANCE_SECONDS)
    if now < earliest:
        before = "2024" if now < NEVER_BEFORE else "the bundle was made"
        return Finding("clock", "note", f"{found}, before {before}", advice)
    if manifest is not None and manifest.expires is not None and now > manifest.expires:
        ended = time.strftime("%Y-%m-%d", time.gmtime(manifest.expires))
        return Finding("clock", "failed", f"{found}, but the bundle expired on {ended}", "install a newer one, or set the clock")
    return passed("clock", found)
