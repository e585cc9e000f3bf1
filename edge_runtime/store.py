"""The bundles of a device: installed so that whatever fails, whenever, a working one is at hand.

A bundle that is offered is staged, verified from disk, tested in a child process, and put on trial; after enough
successful use it is good, and only then are older ones refused. A bad one is never tried again. The scheme is that of
A/B updaters such as RAUC: a pointer that is replaced in one rename, attempts counted before each start, the old system
kept until the new one has proved itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.child import Limits
from edge_runtime.selftest import SelfTestReport, check_selftest
from edge_runtime.store_folder import StoreFolder
from edge_runtime.store_journal import Journal, describe
from edge_runtime.store_rules import check_acceptable
from edge_runtime.store_staging import stage
from protocol.arguments import as_path
from protocol.bundle import VerifiedBundle, check_expiry, open_bundle
from protocol.errors import BundleError, FedtailorError, IncompatibleVersionError, SelfTestError, StoreBusyError, StoreError
from protocol.trust import Trusted, trusted_of

if TYPE_CHECKING:  # only `current` needs ONNX Runtime
    from edge_runtime.bundle import Bundle

SelfTest = Callable[[Path, str, Limits], SelfTestReport]
NOTE_SECONDS = 30.0  # how often progress of a trial is written down: flash memory wears out
EXHAUSTED = "it did not end in order {} times during its trial"


@dataclass(frozen=True)
class StoreSettings:
    """How a store treats bundles.

    Attributes:
        targets: Hardware groups that this device belongs to, besides ``any`` and its machine name (``aarch64``).
        trial_uses: Successful uses that a bundle on trial needs.
        trial_seconds: Time in use that it needs too.
        trial_starts: Starts without an orderly end after which it is bad, if there is a good one to go back to.
        wait_seconds: How long to wait for another process that works on the store.
        limits: What the self-test may use.
    """

    targets: tuple[str, ...] = ()
    trial_uses: int = 100
    trial_seconds: float = 300.0
    trial_starts: int = 3
    wait_seconds: float = 10.0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class StoreStatus:
    """What a store holds.

    Attributes:
        path: Its folder.
        journal: All that it remembers.
    """

    path: Path
    journal: Journal

    @property
    def state(self) -> str:
        """Return ``trial`` or ``good``, of the bundle in use, or ``empty`` without one."""
        return "trial" if self.journal.trial is not None else "good" if self.journal.good is not None else "empty"


class BundleStore:
    """A folder of bundles, at most three at a time, of which one is in use.

    Several processes may hold a store; each call takes its lock, briefly. One object serves one thread.

    Args:
        path: The store's folder; the first installation makes it.
        trusted: The public key, or its file, of whoever releases bundles; None for calls that open no bundle.
        settings: How it treats bundles.
        self_test: Runs a verified bundle's self-test; in a child process unless replaced.
    """

    def __init__(
        self,
        path: str | Path,
        trusted: str | Path | Trusted | None,
        settings: StoreSettings | None = None,
        self_test: SelfTest = check_selftest,
    ) -> None:
        self.settings = settings or StoreSettings()
        self._folder = StoreFolder(as_path(path, "the store's folder", StoreError), self.settings.wait_seconds)
        self._trusted = None if trusted is None else trusted_of(trusted)
        self._self_test = self_test
        self._in_trial: str | None = None  # digest of the bundle that this object opened, while it is on trial
        self._uses, self._since = 0, 0.0

    @property
    def path(self) -> Path:
        """Return the store's folder."""
        return self._folder.path

    def install(self, folder: str | Path, on_state: Callable[[str], None] = lambda _: None) -> StoreStatus:
        """Take a bundle into the store and put it on trial; installing the bundle in use again does nothing.

        Args:
            folder: The bundle that is offered; it is copied.
            on_state: Told each state that the bundle reaches: offered, staged, verified, tested, trial.

        Raises:
            BundleError: Altered, or signed by another key.
            RefusedBundleError: Known as bad, older than what was good here, or for other hardware.
            IncompatibleVersionError: Expired, or this device's runtime is missing, too old or does not run.
            SelfTestError: It computes something else here; it is noted as bad.
            StoreBusyError: Another process installs.
            StoreError: The store cannot be written; nothing has changed.
        """
        offered = open_bundle(Path(folder), self._key())
        on_state("offered")
        with self._folder.installing():
            journal = self._folder.read()
            if offered.digest not in {stored.digest for stored in (journal.trial, journal.good) if stored is not None}:
                check_acceptable(offered, journal, self.settings.targets)
                stage(self._folder.bundle(offered.digest), offered, self._key(), on_state)
                report = self._test(offered)
                on_state("tested")
                self._put_on_trial(offered, report)
                on_state("trial")
        return self.status()

    def current(self) -> Bundle:
        """Open the bundle in use, verified again; one on trial that keeps failing gives way to the good one.

        Raises:
            StoreError: There is no store, or no bundle in it can be opened.
            BundleSignatureError: None of them is signed by the trusted key.
            IncompatibleVersionError: All have expired, or ONNX Runtime is missing or too old.
        """
        with self._folder.locked():
            counted = self._count_start(self._folder.read())
            bundle, left = self._open_best(counted)
            on_trial = left.trial is not None and left.trial.digest == bundle.digest
            if not on_trial:
                left = left.with_starts(-1)
            if left != counted:
                self._folder.try_to_write(left)
            self._in_trial = bundle.digest if on_trial else None
            self._uses, self._since = 0, time.monotonic()
            return bundle

    def succeeded(self, uses: int = 1) -> None:
        """Report successful uses of the bundle that ``current`` opened; enough of them make it good.

        It never waits and never fails for the disk's sake: what cannot be noted now is noted with a later report.
        """
        if self._in_trial is None:
            return
        self._uses += uses
        with suppress(StoreBusyError), self._folder.locked(wait_seconds=0):
            journal = self._folder.read()
            if journal.trial is None or journal.trial.digest != self._in_trial:
                self._in_trial = None  # somebody promoted, rejected or replaced it
                return
            now = time.monotonic()
            noted = journal.with_progress(self._uses, now - self._since)
            if self._has_proved_itself(noted):
                self._in_trial = None if self._folder.try_to_write(noted.promoted()) else self._in_trial
            elif now - self._since >= NOTE_SECONDS and self._folder.try_to_write(noted):
                self._uses, self._since = 0, now

    def close(self) -> None:
        """End the use of the bundle in order: what was counted is noted, and this start does not count against it.

        Raises:
            StoreError: The store cannot be written.
        """
        ended, self._in_trial = self._in_trial, None
        if ended is None:
            return
        with self._folder.locked():
            journal = self._folder.read()
            if journal.trial is not None and journal.trial.digest == ended:
                noted = journal.with_progress(self._uses, time.monotonic() - self._since).with_starts(-1)
                self._folder.write(noted.promoted() if self._has_proved_itself(noted) else noted)

    def promote(self) -> StoreStatus:
        """Call the bundle on trial good, by hand.

        Raises:
            StoreError: None is on trial, or the store cannot be written.
        """
        with self._folder.locked():
            return self._change(lambda journal: journal.promoted())

    def reject(self, reason: str) -> StoreStatus:
        """Call the bundle on trial bad: it is never taken again, and the good one is in use.

        Raises:
            StoreError: None is on trial, or the store cannot be written.
        """
        with self._folder.locked():
            return self._change(lambda journal: journal.rejected(reason))

    def rollback(self, reason: str) -> StoreStatus:
        """Leave the bundle in use for the one before it, by hand; the one that is left is never taken again.

        Raises:
            StoreError: There is none before it, or the store cannot be written.
        """
        with self._folder.locked():
            return self._change(lambda journal: journal.rolled_back(reason))

    def status(self) -> StoreStatus:
        """Return what the store holds, without opening a bundle.

        Raises:
            StoreError: There is no store, or its memory is damaged.
        """
        with self._folder.locked():
            return StoreStatus(self.path, self._folder.read())

    def note_time(self, seconds: int) -> None:
        """Note a time that a trusted signature vouches for; a clock that stands earlier is wrong.

        Args:
            seconds: Since 1970, UTC.

        Raises:
            StoreError: The store cannot be written.
        """
        with self._folder.locked():
            if seconds > self._folder.read().time_floor:
                self._change(lambda journal: replace(journal, time_floor=seconds))

    def _key(self) -> Trusted:
        """Return the trusted key, which opening a bundle needs."""
        if self._trusted is None:
            raise StoreError("opening a bundle needs a trusted key", hint="pass the public key of whoever releases bundles")
        return self._trusted

    def _test(self, offered: VerifiedBundle) -> SelfTestReport:
        """Return the report of a passed self-test; a bundle that failed is noted as bad."""
        try:
            return self._self_test(self._folder.bundle(offered.digest), offered.digest, self.settings.limits)
        except SelfTestError as error:
            failed, reason = describe(offered.manifest, offered.digest, 0.0), error.sentence()
            with self._folder.locked():
                self._change(lambda journal: journal.condemned(failed, reason))
            raise

    def _put_on_trial(self, offered: VerifiedBundle, report: SelfTestReport) -> None:
        """Make a tested bundle the one in use; what others decided during the test counts."""
        tested = describe(offered.manifest, offered.digest, report.worst_difference)
        with self._folder.locked():
            check_acceptable(offered, self._folder.read(), self.settings.targets)
            self._change(lambda journal: journal.with_trial(tested))

    def _count_start(self, journal: Journal) -> Journal:
        """Count a start of the bundle on trial, on disk before it happens; return what is left after too many."""
        if journal.trial is None:
            return journal
        if journal.trial.starts >= self.settings.trial_starts and journal.good is not None:
            fallen = journal.rejected(EXHAUSTED.format(journal.trial.starts))
            self._folder.try_to_write(fallen)
            return fallen
        counted = journal.with_starts(+1)
        if not self._folder.try_to_write(counted) and journal.good is not None:
            return replace(journal, trial=None)  # a trial that cannot be counted could crash for ever
        return counted

    def _open_best(self, journal: Journal) -> tuple[Bundle, Journal]:
        """Return the first bundle that opens, and the memory without those that the disk has damaged."""
        from edge_runtime.bundle import Bundle
        from edge_runtime.sessions import check_runtime

        key, left = self._key(), journal
        faults: list[FedtailorError] = []
        for stored in journal.kept():
            try:
                bundle = Bundle.open(self._folder.bundle(stored.digest), key)
                if bundle.digest != stored.digest:
                    raise StoreError("a stored bundle is another one", expected=stored.digest[:16], got=bundle.digest[:16])
                check_expiry(bundle.manifest, max(time.time(), journal.time_floor))
                check_runtime(bundle.manifest.minimum_onnxruntime)
            except BundleError as fault:
                faults.append(fault)
                left = left.without(stored.digest)
            except IncompatibleVersionError as fault:  # not the disk's fault, and perhaps only the clock's: forget nothing
                faults.append(fault)
            else:
                return bundle, left  # that one opened shows that the key is right, and the others damaged
        if not faults:
            raise StoreError(f"{self.path} holds no bundle", hint="fedtailor edge install puts one in")
        raise faults[0]

    def _has_proved_itself(self, journal: Journal) -> bool:
        """Tell whether the bundle on trial was used enough."""
        trial = journal.trial
        return trial is not None and trial.uses >= self.settings.trial_uses and trial.seconds >= self.settings.trial_seconds

    def _change(self, change: Callable[[Journal], Journal]) -> StoreStatus:
        """Replace the memory by what a function makes of it, under the lock that the caller holds."""
        journal = change(self._folder.read())
        self._folder.write(journal)
        return StoreStatus(self.path, journal)
