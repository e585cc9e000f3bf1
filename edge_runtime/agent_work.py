"""What a device does for a round: train from the state that came down, or summarise its labelled data as prototypes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from edge_runtime.bundle import Bundle
from edge_runtime.device_data import DeviceData
from edge_runtime.local_training import LocalTraining
from edge_runtime.prototypes import DEFAULT_MINIMUM_COUNT, class_statistics
from edge_runtime.sampling import DrawKey
from protocol.errors import FedtailorError, InputError, MalformedMessageError
from protocol.files import write_atomically
from protocol.messages import Message, ParameterUpdate, PrototypeUpdate
from protocol.round_messages import RoundTask
from protocol.tensors import Array, TensorLimits, decode_tensors, encode_tensors

STATE_LIMITS = TensorLimits(header_bytes=1 << 20, tensors=4096, magnitude=1e30)


class Work(Protocol):
    """Work of a device; done in a thread of its own."""

    def objection(self, task: RoundTask) -> str | None:
        """Return why this device cannot do a task, or None; quick."""

    def do(self, task: RoundTask, state: bytes) -> Message:
        """Return the update that answers a task.

        Args:
            task: The task.
            state: What it begins with, verified against the task's digest.

        Raises:
            FedtailorError: It could not be done.
        """


class DeviceWork:
    """Work on a device's own data with its bundle.

    Args:
        bundle: The bundle in use.
        data: The device's data.
        device: Its id; it names its draws.
        folder: Where tensors that never leave the device are kept between rounds.
    """

    def __init__(self, bundle: Bundle, data: DeviceData, device: str, folder: Path) -> None:
        self._bundle = bundle
        self._data = data
        self._device = device
        self._folder = folder

    def objection(self, task: RoundTask) -> str | None:
        """Return why this device cannot do a task: no labels, or nothing in the bundle to do it with."""
        try:
            if self._data.labels() is None:
                return "this device has no labelled data"
            if task.payload == "prototypes":
                self._bundle.manifest.feature_dimension()
            elif task.payload != "parameters":
                return f"this device cannot make {task.payload}"
            else:
                _ = self._training
        except FedtailorError as error:
            return error.sentence()
        return None

    def do(self, task: RoundTask, state: bytes) -> Message:
        """Return a parameter or prototype update."""
        if hashlib.sha256(state).hexdigest() != task.state:
            raise MalformedMessageError("the state of a round is another one", expected=task.state[:16])
        labels = self._data.labels()
        if labels is None:
            raise InputError("this device has no labelled data", expected="labels.npy beside support.npy")
        samples = self._data.support()
        if task.payload == "prototypes":
            released = class_statistics(self._bundle.features(samples), labels).at_least(DEFAULT_MINIMUM_COUNT)
            return PrototypeUpdate(task.round, released.classes, released.means(), released.counts)
        down = decode_tensors(state, STATE_LIMITS)
        begin = {**self._training.initial_state(), **self._private(task.round), **down}
        key = DrawKey(task.seed, task.round, self._device)
        end, metrics = self._training.run(begin, dict(task.scalars), key, samples, labels)
        self._keep(task.round, {name: tensor for name, tensor in end.items() if name not in down})
        tensors = {name: np.asarray(end[name], np.float32) for name in down}
        figures = {name: float(value) for name, value in metrics.items() if math.isfinite(float(value))}
        return ParameterUpdate(task.round, task.state, len(labels), "float32", figures, tensors).encoded(task.encoding)

    @cached_property
    def _training(self) -> LocalTraining:
        """Return the bundle's local steps."""
        return LocalTraining(self._bundle)

    def _private(self, number: int) -> Mapping[str, Array]:
        """Return what the latest round before this one left on the device."""
        found = [path for path in self._folder.glob("private-*.safetensors") if path.stem[8:].isdecimal() and int(path.stem[8:]) < number]
        latest = max(found, default=None, key=lambda path: int(path.stem[8:]))
        return {} if latest is None else decode_tensors(latest.read_bytes(), STATE_LIMITS)

    def _keep(self, number: int, private: Mapping[str, Array]) -> None:
        """Keep what never leaves the device, for the rounds after this one."""
        if not private:
            return
        write_atomically(self._folder / f"private-{number:05d}.safetensors", encode_tensors(private), 0o600)
        for path in sorted(self._folder.glob("private-*.safetensors"))[:-2]:  # this round may be asked for again
            path.unlink(missing_ok=True)
