"""Who may release bundles: n of m keys, replaced by signed successors.

A policy is a JSON file that an owner hands to devices. Its successor counts only if enough keys of the old policy *and* enough of its
own have signed it, so neither a lost key nor a few stolen ones can take a fleet over (the rule for root keys of The Update
Framework, specification 1.0, section 5.3). A lone public key is the policy 1 of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.arguments import as_path
from protocol.errors import IncompatibleVersionError, KeyFileError
from protocol.files import read_limited, write_atomically
from protocol.keys import PrivateKey, PublicKey, is_public_key
from protocol.schema import SchemaError, decode, parse_json, to_json

FORMAT = "fedtailor-trust/1"
CONTEXT = b"fedtailor-trust/1\0"  # a policy's signature is valid for nothing else
MAXIMUM_KEYS = 16
MAXIMUM_FILE_BYTES = 16 * 1024


@dataclass(frozen=True)
class TrustPolicy:
    """Which keys may sign, and how many must.

    Attributes:
        keys: Public keys in hexadecimal, 1 to 16, all different.
        threshold: How many of them must have signed.
        version: Grows by one with each successor.
        expires: Seconds since 1970 after which nothing is believed under it, or None.
    """

    keys: tuple[str, ...]
    threshold: int = 1
    version: int = 1
    expires: int | None = None

    def __post_init__(self) -> None:
        """Refuse a policy that nothing, or anything, would satisfy."""
        conditions = [
            (1 <= len(self.keys) <= MAXIMUM_KEYS, f"there must be 1 to {MAXIMUM_KEYS} keys", len(self.keys)),
            (all(map(is_public_key, self.keys)), "every key must be a usable public key", "another text"),
            (len({key.lower() for key in self.keys}) == len(self.keys), "keys must differ", "one key twice"),
            (1 <= self.threshold <= len(self.keys), f"the threshold must be 1 to {len(self.keys)}", self.threshold),
            (self.version >= 1, "the version must be at least 1", self.version),
            (self.expires is None or self.expires > 0, "the expiry must be a time", self.expires),
        ]
        for holds, what, got in conditions:
            if not holds:
                raise KeyFileError(f"the trust policy is wrong: {what}", got=got)

    @classmethod
    def of(cls, trusted: Trusted) -> TrustPolicy:
        """Return a policy as it is, and a lone key as 1 of 1."""
        return trusted if isinstance(trusted, TrustPolicy) else cls((trusted.hex,))

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprints of the keys, in their order."""
        return tuple(PublicKey.from_hex(key).fingerprint for key in self.keys)

    def signers(self, message: bytes, signatures: Mapping[str, bytes]) -> tuple[str, ...]:
        """Return the fingerprints of the policy's keys that signed the message, each once.

        Args:
            message: What is signed.
            signatures: Fingerprint of a key -> its signature of 64 bytes.
        """
        keys = map(PublicKey.from_hex, self.keys)
        return tuple(key.fingerprint for key in keys if key.verify(message, signatures.get(key.fingerprint, b"")))

    def check_time(self, now: float) -> None:
        """Refuse a policy whose time is over.

        Raises:
            IncompatibleVersionError: It has expired at ``now``, seconds since 1970.
        """
        if self.expires is not None and now > self.expires:
            raise IncompatibleVersionError(
                "the trust policy has expired",
                expected=f"a time before {self.expires}",
                got=int(now),
                hint="accept its successor: fedtailor keys accept",
            )

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        return to_json(self)


Trusted = PublicKey | TrustPolicy


@dataclass(frozen=True)
class TrustFile:
    """A policy with the signatures on it.

    Attributes:
        format: ``fedtailor-trust/1``.
        policy: The policy.
        signatures: Public key in hexadecimal -> signature in hexadecimal.
    """

    format: str
    policy: TrustPolicy
    signatures: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> TrustFile:
        """Read a policy file; whether to believe it is another question.

        Raises:
            KeyFileError: Missing or malformed.
        """
        try:
            file = decode(cls, parse_json(read_limited(path, MAXIMUM_FILE_BYTES, KeyFileError)), "trust")
        except SchemaError as fault:
            raise KeyFileError(f"{path} is no trust policy", expected=fault.expected, got=f"{fault.got} at {fault.where}") from fault
        if file.format != FORMAT or len(file.signatures) > 2 * MAXIMUM_KEYS:
            raise KeyFileError(
                f"{path} is no trust policy", expected=f"format {FORMAT}, at most {2 * MAXIMUM_KEYS} signatures", got=file.format
            )
        return file

    def signed(self, keys: Sequence[PrivateKey]) -> TrustFile:
        """Return the file with further signatures."""
        added = {key.public.hex: key.sign(CONTEXT + self.policy.to_bytes()).hex() for key in keys}
        return replace(self, signatures={**self.signatures, **added})

    def signers_in(self, policy: TrustPolicy) -> tuple[str, ...]:
        """Return the fingerprints of a policy's keys that signed this one.

        Raises:
            KeyFileError: A key or a signature is malformed.
        """
        try:
            signatures = {PublicKey.from_hex(key).fingerprint: bytes.fromhex(text) for key, text in self.signatures.items()}
        except ValueError as error:
            raise KeyFileError("a signature of the trust policy is not in hexadecimal") from error
        return policy.signers(CONTEXT + self.policy.to_bytes(), signatures)

    def save(self, path: Path) -> None:
        """Write the file whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(self) + b"\n")


def open_trusted(path: Path) -> Trusted:
    """Read what a device believes: a public key file, or a trust policy.

    Raises:
        KeyFileError: Neither of them.
    """
    begins = read_limited(path, MAXIMUM_FILE_BYTES, KeyFileError).lstrip()[:1]
    return TrustFile.open(path).policy if begins == b"{" else PublicKey.open(path)


def trusted_of(given: object) -> Trusted:
    """Return the key or policy that a caller believes, itself or in a file.

    Raises:
        KeyFileError: Neither of them.
    """
    if isinstance(given, PublicKey | TrustPolicy):
        return given
    return open_trusted(as_path(given, "what is trusted: a public key, a trust policy, or the file of one", KeyFileError))


def check_successor(trusted: Trusted, successor: TrustFile) -> TrustPolicy:
    """Return the successor's policy if it may take the place of the trusted one; its time is another question.

    Args:
        trusted: What is believed now.
        successor: What asks to be believed.

    Raises:
        KeyFileError: Not the next version, or too few signatures of the old or of the new keys.
    """
    old = TrustPolicy.of(trusted)
    expected = old.version + 1 if isinstance(trusted, TrustPolicy) else successor.policy.version
    if successor.policy.version != expected:
        hint = "policies are accepted one after the other, and never an older one"
        raise KeyFileError("the trust policy is not the next one", expected=f"version {expected}", got=successor.policy.version, hint=hint)
    for name, policy in (("old", old), ("new", successor.policy)):
        signers = successor.signers_in(policy)
        if len(signers) < policy.threshold:
            hint = "have more owners sign it: fedtailor keys rotate"
            raise KeyFileError(
                f"too few {name} keys signed the trust policy", expected=f"at least {policy.threshold}", got=len(signers), hint=hint
            )
    return successor.policy


def follow_successors(trusted: Trusted, successors: Sequence[TrustFile], now: float) -> TrustPolicy:
    """Return the last of a chain of policies, each of which the one before lets take its place.

    One in the middle may have expired: a device that slept through its time must still find the way to the last one. Those of
    versions that are believed already are passed over, so the whole history may be offered to every device.

    Args:
        trusted: What is believed now.
        successors: In the order of their versions.
        now: Seconds since 1970.

    Raises:
        KeyFileError: A link is missing, or has too few signatures, or nothing is newer than what is believed.
        IncompatibleVersionError: The last one has expired.
    """
    reached = trusted
    for successor in successors:
        if isinstance(reached, TrustPolicy) and successor.policy.version <= reached.version and successor is not successors[-1]:
            continue
        reached = check_successor(reached, successor)
    policy = TrustPolicy.of(reached)
    policy.check_time(now)
    return policy
