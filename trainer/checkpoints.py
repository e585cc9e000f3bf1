"""A server state must fit the network that it is put into: nothing may keep its random beginning unnoticed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protocol.errors import RunFolderError


def check_state(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse a state with other names, shapes or dtypes than a network has.

    Args:
        expected: The network's own tensors by name.
        state: What a run folder or a round gave.

    Raises:
        RunFolderError: With the first tensor that does not fit.
    """
    for name in sorted(expected.keys() | state.keys()):
        shapes = [f"{tuple(each[name].shape)} {each[name].dtype}" if name in each else "nothing" for each in (expected, state)]
        if shapes[0] != shapes[1]:
            hint = "the run was made with other settings or another version"
            raise RunFolderError(f"the checkpoint does not fit the method at {name}", expected=shapes[0], got=shapes[1], hint=hint)
