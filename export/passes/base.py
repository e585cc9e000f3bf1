"""What a graph pass is: a change in place between conditions that are checked, so that no pass can rely on luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from protocol.errors import FedtailorError, ParityError


@dataclass(frozen=True)
class Condition:
    """Something that must hold of a model.

    Attributes:
        text: What holds, in words.
        holds: Tells whether it does.
        hint: What to do where it does not.
    """

    text: str
    holds: Callable[[onnx.ModelProto], bool]
    hint: str | None = None


@dataclass(frozen=True)
class GraphPass:
    """A change of a model in place.

    Attributes:
        name: Name for messages.
        change: Makes the change.
        requires: What must hold before.
        ensures: What holds after.
        error: Class of the error where a model does not meet what is required.
    """

    name: str
    change: Callable[[onnx.ModelProto], None]
    requires: tuple[Condition, ...] = ()
    ensures: tuple[Condition, ...] = ()
    error: type[FedtailorError] = ParityError

    def __call__(self, model: onnx.ModelProto) -> None:
        """Check, change in place, and check again.

        Raises:
            FedtailorError: Of the class ``error``: the model does not meet what the pass requires.
            ParityError: The pass did not do what it promises.
        """
        _check(model, self.requires, self.error, f"the pass {self.name} cannot be applied")
        self.change(model)
        _check(model, self.ensures, ParityError, f"the pass {self.name} broke its promise")


def _check(model: onnx.ModelProto, conditions: tuple[Condition, ...], error: type[FedtailorError], what: str) -> None:
    """Refuse a model that does not meet one of the conditions."""
    for condition in conditions:
        if not condition.holds(model):
            raise error(what, expected=condition.text, hint=condition.hint)
