"""Which reason code an error has on the wire."""

from __future__ import annotations

from protocol.errors import (
    FedtailorError,
    MessageSignatureError,
    NotAllowedError,
    OversizeMessageError,
    PrototypeClassError,
    PrototypeCountError,
    PrototypeDimensionError,
    PrototypeNotFiniteError,
    RevokedDeviceError,
    StaleMessageError,
)
from protocol.freshness import DuplicateMessageError
from protocol.message_checks import NotFiniteMessageError, ReasonCode

CODES: tuple[tuple[type[FedtailorError], ReasonCode], ...] = (
    (DuplicateMessageError, "duplicate"),
    (StaleMessageError, "stale"),
    (NotFiniteMessageError, "not-finite"),
    (PrototypeNotFiniteError, "not-finite"),
    (PrototypeDimensionError, "wrong-shape"),
    (PrototypeCountError, "malformed"),
    (PrototypeClassError, "malformed"),
    (OversizeMessageError, "too-large"),
    (MessageSignatureError, "foreign"),
    (RevokedDeviceError, "revoked"),
    (NotAllowedError, "foreign"),
)


def reason_code(error: FedtailorError) -> ReasonCode:
    """Return the code of the first class that an error belongs to; what is none of them is malformed."""
    return next((code for kind, code in CODES if isinstance(error, kind)), "malformed")
