"""The one error tree: every error a caller can meet, grouped by what the caller can do about it.

FedtailorError                      1
├── InputError                     10   correct what you passed
│   ├── EmptySupportSetError       11
│   ├── SampleShapeError           12
│   ├── SampleDtypeError           13
│   ├── SampleNotFiniteError       14
│   ├── DatasetError               15
│   ├── RunFolderError             16
│   ├── LabelError                 17
│   └── SampleRangeError           18
├── BundleError                    20   get the bundle again, or the right key
│   ├── BundleFileError            21   a listed file is missing, altered or of another length
│   ├── UnlistedFileError          22
│   ├── BundleSignatureError       23
│   ├── ManifestError              24
│   ├── UnsafeGraphError           25
│   ├── RefusedBundleError         26   whole and signed, but not for this device
│   ├── SelfTestError              27
│   └── StoreError                 28   look at the device's bundle store
│       └── StoreBusyError         29
├── MessageError                   30   drop the message; the sender is wrong or hostile
│   ├── MalformedMessageError      31
│   ├── OversizeMessageError       32
│   ├── MessageSignatureError      33
│   ├── StaleMessageError          34
│   └── PrototypeError             35
│       ├── PrototypeNotFiniteError    36
│       ├── PrototypeDimensionError    37
│       ├── PrototypeCountError        38
│       └── PrototypeClassError        39
├── IncompatibleVersionError       40   update one side
│   ├── MissingExtraError          41
│   └── UnfitDeviceError           42
├── TransportError                 50   look at the network or the broker, then try again
│   ├── BrokerUnreachableError     51
│   ├── DeadlineError              52
│   └── ConnectionLostError        53
├── NumericalError                 60   lower a rate, look at the data
│   ├── DivergenceError            61
│   └── ParityError                62
└── NotAllowedError                70   ask whoever owns the keys
    ├── UnknownDeviceError         71
    ├── KeyFileError               72
    └── RevokedDeviceError         73

The number is the process's exit code. Each message says what was expected, what came, and what to do;
``expected``, ``got`` and ``hint`` keep the three apart for programs.
"""

from __future__ import annotations

from typing import ClassVar


class FedtailorError(Exception):
    """Root of the tree.

    Args:
        what: What went wrong, as the beginning of a sentence ("sample shape is wrong").
        expected: What would have been right.
        got: What came instead.
        hint: What the reader can do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, expected: object = None, got: object = None, hint: str | None = None) -> None:
        self.what = what
        self.expected = expected
        self.got = got
        self.hint = hint
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """Return the whole message on one line."""
        details = []
        if self.expected is not None:
            details.append(f"expected {self.expected}")
        if self.got is not None:
            details.append(f"got {self.got}")
        text = self.what + (": " + ", ".join(details) if details else "")
        return text + (f"; {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the structured fields when the error crosses a process boundary."""
        fields = {"expected": self.expected, "got": self.got, "hint": self.hint}
        return (_rebuild, (type(self), self.what, fields))


def _rebuild(kind: type[FedtailorError], what: str, fields: dict[str, object]) -> FedtailorError:
    """Make the error again from its parts."""
    hint = fields["hint"]
    return kind(what, expected=fields["expected"], got=fields["got"], hint=None if hint is None else str(hint))


class InputError(FedtailorError):
    """What the caller passed cannot be used as it is."""

    exit_code = 10


class EmptySupportSetError(InputError):
    """Personalization was asked for without a single sample."""

    exit_code = 11


class SampleShapeError(InputError):
    """Samples do not have the shape that the bundle's raw input states."""

    exit_code = 12


class SampleDtypeError(InputError):
    """Samples do not have the dtype that the bundle's raw input states."""

    exit_code = 13


class SampleNotFiniteError(InputError):
    """Samples hold NaN or infinity."""

    exit_code = 14


class DatasetError(InputError):
    """A data set is absent, incomplete or corrupt."""

    exit_code = 15


class RunFolderError(InputError):
    """A run folder is absent, incomplete, or would be overwritten."""

    exit_code = 16


class LabelError(InputError):
    """Labels are missing, of another length than the samples, or outside the known classes."""

    exit_code = 17


class SampleRangeError(InputError):
    """Integer samples lie outside the raw range that the bundle states."""

    exit_code = 18


class BundleError(FedtailorError):
    """A bundle cannot be trusted or read."""

    exit_code = 20


class BundleFileError(BundleError):
    """A listed file is missing, altered, of another length, or not a plain file."""

    exit_code = 21


class UnlistedFileError(BundleError):
    """The bundle's folder holds something that the manifest does not list."""

    exit_code = 22


class BundleSignatureError(BundleError):
    """The manifest's signature does not verify under the trusted key."""

    exit_code = 23


class ManifestError(BundleError):
    """The manifest's content is malformed or contradicts itself."""

    exit_code = 24


class UnsafeGraphError(BundleError):
    """A graph uses an operator off the allow-list, external data, or cannot be parsed."""

    exit_code = 25


class RefusedBundleError(BundleError):
    """The bundle is whole and signed, but not for this device: other hardware, older than what ran here, or known as bad."""

    exit_code = 26


class SelfTestError(BundleError):
    """A bundle does not compute on this device what it computed where it was made."""

    exit_code = 27


class StoreError(BundleError):
    """The device's bundle store is damaged, cannot be written, or holds no working bundle."""

    exit_code = 28


class StoreBusyError(StoreError):
    """Another process works on the bundle store."""

    exit_code = 29


class MessageError(FedtailorError):
    """A message from the wire cannot be accepted."""

    exit_code = 30


class MalformedMessageError(MessageError):
    """The bytes are not a message of this protocol."""

    exit_code = 31


class OversizeMessageError(MessageError):
    """The message is larger than this protocol allows."""

    exit_code = 32


class MessageSignatureError(MessageError):
    """The message is unsigned, or signed by another key than its sender's."""

    exit_code = 33


class StaleMessageError(MessageError):
    """The message is expired, a duplicate, from an earlier boot, or for another round or bundle."""

    exit_code = 34


class PrototypeError(MessageError):
    """Prototypes contradict themselves or the federation's contract."""

    exit_code = 35


class PrototypeNotFiniteError(PrototypeError):
    """A prototype holds NaN or infinity, or is absurdly large."""

    exit_code = 36


class PrototypeDimensionError(PrototypeError):
    """A prototype has another feature dimension than the bundle's features."""

    exit_code = 37


class PrototypeCountError(PrototypeError):
    """A sample count is not a positive, plausible integer."""

    exit_code = 38


class PrototypeClassError(PrototypeError):
    """A prototype is of a class that the bundle does not know, or of one class twice."""

    exit_code = 39


class IncompatibleVersionError(FedtailorError):
    """The two sides speak different versions."""

    exit_code = 40


class MissingExtraError(IncompatibleVersionError):
    """An optional dependency that this command needs is not installed."""

    exit_code = 41


class UnfitDeviceError(IncompatibleVersionError):
    """This device, as it is, cannot run a bundle."""

    exit_code = 42


class TransportError(FedtailorError):
    """The network or the broker failed."""

    exit_code = 50


class BrokerUnreachableError(TransportError):
    """No connection to the broker before the deadline."""

    exit_code = 51


class DeadlineError(TransportError):
    """What was waited for did not come in time."""

    exit_code = 52


class ConnectionLostError(TransportError):
    """The connection broke and did not come back in time."""

    exit_code = 53


class NumericalError(FedtailorError):
    """A computation gave unusable numbers."""

    exit_code = 60


class DivergenceError(NumericalError):
    """Training produced NaN or infinity."""

    exit_code = 61


class ParityError(NumericalError):
    """An exported graph does not compute what the original computes."""

    exit_code = 62


class NotAllowedError(FedtailorError):
    """The caller or the sender has no right to this."""

    exit_code = 70


class UnknownDeviceError(NotAllowedError):
    """A device is not in the registry."""

    exit_code = 71


class KeyFileError(NotAllowedError):
    """A key file is missing, malformed, readable by others, or would be overwritten."""

    exit_code = 72


class RevokedDeviceError(NotAllowedError):
    """A device was enrolled, and its key is revoked."""

    exit_code = 73
