"""A part's module or pure function in the one form that is traced and compared: a frozen copy that takes tensors in order.

The caller's module is never touched: it is copied, and the copy goes to the CPU in eval mode. What cannot be copied or
traced faithfully is refused before tracing, with what to do instead.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from protocol.errors import InputError
from protocol.manifest import MAXIMUM_FILE_BYTES
from trainer.methods.parts import Computation, Part


class FlatModule(nn.Module):
    """A computation that takes all its inputs as positional tensors and returns a tuple.

    Args:
        computation: A module, already copied, or a pure function.
        gathered: Names of the last inputs, which it takes as one dictionary; none for no dictionary.
    """

    def __init__(self, computation: Computation, gathered: tuple[str, ...]) -> None:
        super().__init__()
        self.computation = computation
        self.gathered = gathered

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs as a tuple."""
        first = len(inputs) - len(self.gathered)
        named = (dict(zip(self.gathered, inputs[first:], strict=True)),) if self.gathered else ()
        outputs = self.computation(*inputs[:first], *named)
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def flat_module(part: Part) -> FlatModule:
    """Return a part's computation, ready to be traced.

    Raises:
        InputError: It cannot be copied, hides weights where nobody finds them, has none (meta device), or is too large.
    """
    computation, name = part.module, part.entry_point
    if isinstance(computation, nn.Module):
        _refuse_hidden_modules(computation, name)
        _refuse_size(computation, name)
        computation = _copy(computation, name)
    else:
        _refuse_captured_modules(computation, name)
    gathered = tuple(tensor.name for tensor in part.inputs[len(part.inputs) - part.gathered :])
    return FlatModule(computation, gathered).eval()


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute as torch does by default, whatever default dtype, default device, autocast or inference mode the caller is in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.inference_mode(mode=False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(before)


def _copy(module: nn.Module, name: str) -> nn.Module:
    """Return a deep copy on the CPU in eval mode."""
    try:
        return copy.deepcopy(module).cpu().eval()
    except Exception as error:  # a module may hold anything, and its own __deepcopy__ may raise anything
        hint = "give every weight a value, and hold computed tensors as buffers: module.to_empty(), detach(), register_buffer()"
        raise InputError(f"the module for {name} cannot be copied", got=f"{type(error).__name__}: {error}"[:300], hint=hint) from error


def _refuse_size(module: nn.Module, name: str) -> None:
    """Refuse weights that no file of a bundle may hold."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
    if size > MAXIMUM_FILE_BYTES:
        hint = "take a smaller model, or cut it into several entry points"
        raise InputError(f"the module for {name} is too large", expected=f"at most {MAXIMUM_FILE_BYTES} bytes", got=size, hint=hint)


def _refuse_hidden_modules(module: nn.Module, name: str) -> None:
    """Refuse modules held where torch does not look: a plain list, or an attribute set past ``nn.Module``."""
    for path, owner in module.named_modules():
        for attribute, value in vars(owner).items():
            hidden = attribute not in ("_modules", "_parameters", "_buffers") and any(isinstance(each, nn.Module) for each in _items(value))
            if hidden:
                where = f"{path}.{attribute}".lstrip(".")
                hint = "assign it as an ordinary attribute, or hold it in nn.ModuleList or nn.ModuleDict"
                raise InputError(f"the module for {name} hides another one", expected="registered modules", got=where, hint=hint)


def _refuse_captured_modules(function: object, name: str) -> None:
    """Refuse a function that carries modules along: they could be neither copied nor put into eval mode."""
    if any(isinstance(each, nn.Module) for value in _captured(function) for each in _items(value)):
        hint = "pass the module itself as the part, or call torch.func.functional_call inside a module that holds it"
        raise InputError(f"the function for {name} is not pure", expected="tensors as arguments", got="a captured module", hint=hint)


def _captured(function: object) -> Iterator[object]:
    """Yield what a function carries along: closure, defaults, bound object, arguments of a partial."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _captured(function.func)
        return
    yield getattr(function, "__self__", None)
    yield from getattr(function, "__defaults__", None) or ()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that was never assigned
            continue


def _items(value: Any) -> tuple[object, ...]:
    """Return a value, or what a plain container holds."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    return tuple(value) if isinstance(value, list | tuple | set) else (value,)
