"""``manifest.sig``: who signed a bundle, as small strict JSON.

    {"format": "fedtailor-signatures/1", "signatures": {"<fingerprint>": "<128 hex digits>", ...}}

A fingerprint only says which key to try; nothing is believed because of it. The file itself is signed by nobody: adding a signature
to it must not break those that are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import BundleSignatureError
from protocol.keys import PrivateKey
from protocol.schema import SchemaError, decode, parse_json, to_json

FORMAT = "fedtailor-signatures/1"
MAXIMUM_SIGNATURES = 16
MAXIMUM_SIGNATURE_FILE_BYTES = 8 * 1024
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
SIGNATURE = re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True)
class SignatureFile:
    """Signatures over one and the same message.

    Attributes:
        format: ``fedtailor-signatures/1``.
        signatures: Fingerprint of a key -> its signature in hexadecimal; 1 to 16.
    """

    format: str
    signatures: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse what is no list of signatures."""
        conditions = [
            (self.format == FORMAT, f"the format {FORMAT}", self.format),
            (1 <= len(self.signatures) <= MAXIMUM_SIGNATURES, f"1 to {MAXIMUM_SIGNATURES} signatures", len(self.signatures)),
            (all(map(FINGERPRINT.fullmatch, self.signatures)), "fingerprints of 16 hex digits", "another text"),
            (all(map(SIGNATURE.fullmatch, self.signatures.values())), "signatures of 128 hex digits", "another text"),
        ]
        for holds, expected, got in conditions:
            if not holds:
                raise BundleSignatureError("the signatures are malformed", expected=expected, got=str(got)[:80])

    @classmethod
    def by(cls, key: PrivateKey, message: bytes) -> SignatureFile:
        """Return the file with one key's signature."""
        return cls(FORMAT, {key.public.fingerprint: key.sign(message).hex()})

    @classmethod
    def from_bytes(cls, data: bytes) -> SignatureFile:
        """Return the signatures in JSON bytes.

        Raises:
            BundleSignatureError: They are malformed.
        """
        try:
            return decode(cls, parse_json(data), "signatures")
        except SchemaError as fault:
            raise BundleSignatureError(f"the signatures are malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault

    def to_bytes(self) -> bytes:
        """Return the file, the same bytes for the same signatures."""
        return to_json(self)

    def with_signature(self, key: PrivateKey, message: bytes) -> SignatureFile:
        """Return the file with a further signature; one by a key that has signed already takes the earlier one's place.

        Raises:
            BundleSignatureError: There are as many as there may be.
        """
        return SignatureFile(self.format, {**self.signatures, **SignatureFile.by(key, message).signatures})

    def by_fingerprint(self) -> dict[str, bytes]:
        """Return fingerprint -> the 64 bytes of the signature."""
        return {fingerprint: bytes.fromhex(text) for fingerprint, text in self.signatures.items()}
