"""Evil in signatures and in what is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from protocol.bundle import SIGNATURE_CONTEXT
from protocol.keys import PrivateKey
from protocol.signatures import SignatureFile
from protocol.trust import TrustPolicy
from tests.protocol.evil.drafts import KEY, SECOND, STRANGER, Changes, F, Kind, S, V, pair, signed

TWO_OF_TWO = TrustPolicy((KEY.public.hex, SECOND.public.hex), threshold=2)
MALFORMED = "signatures are malformed"


def raw(change: Callable[[bytes], bytes]) -> Changes:
    """Return a change of the bytes of the signature file."""
    return {"signature": lambda data: change(signed(data))}


def parsed(change: Callable[[dict[str, Any]], None]) -> Changes:
    """Return a change of what the signature file says."""

    def act(data: bytes) -> bytes:
        content = json.loads(signed(data))
        change(content)
        return json.dumps(content).encode()

    return {"signature": act}


def context(before: bytes) -> Changes:
    """Return a signature of the right key over the manifest with something before it."""
    return {"signature": lambda data: SignatureFile.by(KEY, before + data).to_bytes()}


def signers(*keys: PrivateKey) -> Changes:
    """Return signatures of these keys, under a policy that wants both owners'."""

    def act(data: bytes) -> bytes:
        file = SignatureFile.by(keys[0], SIGNATURE_CONTEXT + data)
        for key in keys[1:]:
            file = file.with_signature(key, SIGNATURE_CONTEXT + data)
        return file.to_bytes()

    return {"signature": act, "policy": TWO_OF_TWO}


def by(key: PrivateKey) -> Changes:
    return {"signature": lambda data: SignatureFile.by(key, SIGNATURE_CONTEXT + data).to_bytes()}


def under_second_name(same_key: bool) -> Changes:
    """Return two signatures, the second under the second owner's fingerprint, made by the first key or by the second."""

    def act(data: bytes) -> bytes:
        file = SignatureFile.by(KEY, SIGNATURE_CONTEXT + data)
        other = (KEY if same_key else SECOND).sign(SIGNATURE_CONTEXT + data).hex()
        return SignatureFile(file.format, {**file.signatures, SECOND.public.fingerprint: other}).to_bytes()

    return {"signature": act, "policy": TWO_OF_TWO}


def for_manifest(changed: bool) -> Changes:
    """Return the signature of another manifest, or of this one."""
    return {"signature": lambda data: signed(data + b" " if changed else data)}


def until(expires: int) -> Changes:
    return {"policy": TrustPolicy((KEY.public.hex,), expires=expires)}


def more(count: int) -> Changes:
    """Return further signatures of strangers."""
    return parsed(lambda content: content["signatures"].update({f"{number:016x}": "0" * 128 for number in range(count)}))


def value_of(text: str | None) -> Changes:
    """Return another text in the place of the signature."""

    def change(content: dict[str, Any]) -> None:
        if text is not None:
            content["signatures"][KEY.public.fingerprint] = text

    return parsed(change)


def same(data: bytes) -> bytes:
    return data


KINDS: dict[str, Kind] = {
    "an empty signature file": pair(raw, lambda data: b"", same, S, MALFORMED),
    "half a signature file": pair(raw, lambda data: data[: len(data) // 2], same, S, MALFORMED),
    "a bare signature of 64 bytes": pair(raw, lambda data: b"\x90" * 64, same, S, MALFORMED),
    "bytes after the signatures": pair(raw, lambda data: data + b"{}", same, S, MALFORMED),
    "a signature file of a megabyte": pair(raw, lambda data: data + b" " * 2**20, same, F, "manifest.sig is too large"),
    "one fingerprint twice": pair(
        raw,
        lambda data: data.replace(b'"signatures": {', b'"signatures": {"%s": "00",' % KEY.public.fingerprint.encode()),
        same,
        S,
        MALFORMED,
    ),
    "a signature too short": pair(value_of, "00" * 63, None, S, "128 hex digits"),
    "a signature too long": pair(value_of, "00" * 65, None, S, "128 hex digits"),
    "a signature that is no text of digits": pair(value_of, "g" * 128, None, S, "128 hex digits"),
    "a signature of zeros": pair(value_of, "0" * 128, None, S, "does not verify"),
    "seventeen signatures": pair(more, 16, 15, S, "1 to 16 signatures"),
    "a signature file of the future": pair(
        parsed, lambda content: content.update(format="fedtailor-signatures/2"), lambda content: None, S, "format fedtailor-signatures/1"
    ),
    "a signature file with a further field": pair(parsed, lambda content: content.update(trusted=True), lambda content: None, S, MALFORMED),
    "a stranger's signature": pair(by, STRANGER, KEY, S, "does not verify"),
    "a stranger's signature under the owner's fingerprint": pair(
        lambda key: {
            "signature": lambda data: SignatureFile(
                "fedtailor-signatures/1", {KEY.public.fingerprint: key.sign(SIGNATURE_CONTEXT + data).hex()}
            ).to_bytes()
        },
        STRANGER,
        KEY,
        S,
        "does not verify",
    ),
    "the signature of another manifest": pair(for_manifest, True, False, S, "does not verify"),
    "a signature made for a message": pair(context, b"fedtailor-message/1\0", SIGNATURE_CONTEXT, S, "does not verify"),
    "a signature made for a policy": pair(context, b"fedtailor-trust/1\0", SIGNATURE_CONTEXT, S, "does not verify"),
    "a signature without a context": pair(context, b"", SIGNATURE_CONTEXT, S, "does not verify"),
    "one signature where two are needed": pair(signers, (KEY,), (KEY, SECOND), S, "2 signatures by keys of .*got 1 of them"),
    "one owner and a stranger where two are needed": pair(signers, (KEY, STRANGER), (KEY, SECOND), S, "got 1 of them"),
    "one key under two fingerprints": pair(under_second_name, True, False, S, "got 1 of them"),
    "a policy whose time is over": pair(until, 1, 4_000_000_000, V, "trust policy has expired"),
}
