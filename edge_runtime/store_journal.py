"""What a bundle store remembers, in one small file that is only ever replaced as a whole.

The file is also the pointer to the bundle in use: renaming it over the old one is the one moment at which an
installation, a promotion or a fall-back happens.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import StoreError
from protocol.files import read_limited, write_atomically
from protocol.manifest import HEX_64, Manifest
from protocol.schema import SchemaError, decode, parse_json, to_json

JOURNAL_NAME = "state.json"
JOURNAL_BYTES = 1024 * 1024
FORMAT = "fedtailor-store/1"
MOST_BAD = 1000  # the oldest are forgotten; that many releases of one key are no accident


@dataclass(frozen=True)
class Stored:
    """A bundle that lies in the store.

    Attributes:
        digest: Its name.
        name: Name for people.
        bundle_version: As its manifest says.
        created: Seconds since 1970, as its manifest says.
        expires: The same, or None for never.
        worst_difference: Largest difference that the self-test found.
        starts: Times that it was opened in its trial and not yet closed in order.
        uses: Successful uses in its trial.
        seconds: Time in use in its trial.
    """

    digest: str
    name: str
    bundle_version: int
    created: int
    expires: int | None
    worst_difference: float
    starts: int = 0
    uses: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Bad:
    """A bundle that is never taken again."""

    digest: str
    name: str
    bundle_version: int
    reason: str


@dataclass(frozen=True)
class Journal:
    """The whole memory of a store.

    Attributes:
        format: ``fedtailor-store/1``.
        trial: The bundle on trial, or None; while there is one, it is the bundle in use.
        good: The bundle that passed its trial, or None.
        previous: The good bundle before that, for going back by hand.
        bad: Bundles that are never taken again, the oldest first.
        rollback_counter: Highest version that ever was good; older bundles are refused.
        time_floor: Latest time, in seconds since 1970, that a signature vouched for; it cannot be earlier now.
    """

    format: str = FORMAT
    trial: Stored | None = None
    good: Stored | None = None
    previous: Stored | None = None
    bad: tuple[Bad, ...] = ()
    rollback_counter: int = 0
    time_floor: int = 0

    def __post_init__(self) -> None:
        """Refuse a memory that no store writes."""
        digests = [stored.digest for stored in self.kept()]
        if self.format != FORMAT or not all(map(HEX_64.fullmatch, digests)) or len(set(digests)) != len(digests):
            raise StoreError("the store's state contradicts itself", expected=FORMAT, got=self.format)

    def kept(self) -> tuple[Stored, ...]:
        """Return the bundles that lie in the store, the one in use first."""
        return tuple(stored for stored in (self.trial, self.good, self.previous) if stored is not None)

    def bad_reason(self, digest: str) -> str | None:
        """Return why a bundle is never taken again, or None if it is not known as bad."""
        return next((bad.reason for bad in self.bad if bad.digest == digest), None)

    def with_trial(self, stored: Stored) -> Journal:
        """Put a tested bundle on trial; one that was on trial gives way."""
        previous = None if self.previous is not None and self.previous.digest == stored.digest else self.previous
        return replace(self, trial=stored, previous=previous, time_floor=max(self.time_floor, stored.created))

    def promoted(self) -> Journal:
        """Make the bundle on trial the good one; only now older ones become unacceptable.

        Raises:
            StoreError: None is on trial.
        """
        if self.trial is None:
            raise StoreError("no bundle is on trial", hint="install one first")
        counter = max(self.rollback_counter, self.trial.bundle_version)
        return replace(self, trial=None, good=self.trial, previous=self.good or self.previous, rollback_counter=counter)

    def with_progress(self, uses: int, seconds: float) -> Journal:
        """Add to what the bundle on trial has behind it, if there is one."""
        trial = self.trial
        return self if trial is None else replace(self, trial=replace(trial, uses=trial.uses + uses, seconds=trial.seconds + seconds))

    def with_starts(self, more: int) -> Journal:
        """Add to the starts of the bundle on trial, if there is one."""
        return self if self.trial is None else replace(self, trial=replace(self.trial, starts=max(0, self.trial.starts + more)))

    def rejected(self, reason: str) -> Journal:
        """Note the bundle on trial as bad; the good one is in use.

        Raises:
            StoreError: None is on trial.
        """
        if self.trial is None:
            raise StoreError("no bundle is on trial", hint="fedtailor edge store rollback leaves a good one")
        return self.condemned(self.trial, reason)

    def rolled_back(self, reason: str) -> Journal:
        """Note the bundle in use as bad; the one before it is in use.

        Raises:
            StoreError: There is none before it.
        """
        kept = self.kept()
        if len(kept) < 2:
            raise StoreError("the store keeps no earlier bundle to go back to", hint="install another one")
        return self.condemned(kept[0], reason)

    def condemned(self, stored: Stored, reason: str) -> Journal:
        """Note a bundle as bad and take it out of use; the next best takes its place."""
        bad = Bad(stored.digest, stored.name, stored.bundle_version, reason)
        left = self.without(stored.digest)
        return replace(left, bad=(*(each for each in left.bad if each.digest != bad.digest), bad)[-MOST_BAD:])

    def without(self, digest: str) -> Journal:
        """Take a bundle out of use; the next best takes its place."""
        trial, good, previous = (None if each is None or each.digest == digest else each for each in (self.trial, self.good, self.previous))
        if good is None:
            good, previous = previous, None
        return replace(self, trial=trial, good=good, previous=previous)


def describe(manifest: Manifest, digest: str, worst_difference: float) -> Stored:
    """Return what the journal notes about a verified and tested bundle."""
    return Stored(digest, manifest.name, manifest.bundle_version, manifest.created, manifest.expires, worst_difference)


def read_journal(folder: Path) -> Journal:
    """Return what a store remembers.

    Raises:
        StoreError: There is no store, or its memory is damaged.
    """
    path = folder / JOURNAL_NAME
    if not path.exists():
        raise StoreError(f"{folder} holds no bundle store", expected=JOURNAL_NAME, hint="fedtailor edge install makes one")
    data = read_limited(path, JOURNAL_BYTES, StoreError)
    try:
        content = parse_json(data)
        missing = {field.name for field in dataclasses.fields(Journal)} - set(content if isinstance(content, dict) else ())
        if missing:  # defaults are for a new store, not for a memory that lost something
            raise SchemaError(JOURNAL_NAME, "all keys", f"no {min(missing)}")
        return decode(Journal, content, JOURNAL_NAME)
    except SchemaError as fault:
        hint = "remove the store's folder and install the bundle again"
        raise StoreError(f"{folder / fault.where} is damaged", expected=fault.expected, got=fault.got, hint=hint) from fault


def write_journal(folder: Path, journal: Journal) -> None:
    """Replace what a store remembers, on disk before this returns.

    Raises:
        OSError: It could not be written; then the old memory stands.
    """
    write_atomically(folder / JOURNAL_NAME, to_json(journal))
