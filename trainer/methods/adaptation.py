"""Local steps on a device after training: fine-tuning, fitting an embedding, training from scratch.

The draws come from ``edge_runtime.sampling`` like those of training, in a round number that no run reaches.
"""

from __future__ import annotations

from edge_runtime.sampling import ClassIndex
from trainer.engine.base import Client, RoundKey, draw_batches, floating_dtype
from trainer.engine.programs import StepPrograms
from trainer.methods.base import Context, DeviceView, Repeat, State

ADAPTATION_ROUND = 2**32 - 1  # reserved: rounds of training end at a million


class Adaptation:
    """Takes the steps of a phase on one device; the programs of steps are kept for the next device."""

    def __init__(self) -> None:
        self._programs = StepPrograms()

    def adapt(self, phase: Repeat, start: State, view: DeviceView, context: Context) -> State:
        """Return the state after all steps of a phase on a device's labelled support.

        Args:
            phase: The step, its draws and their number.
            start: State before the first step; left as it is.
            view: The device. Without labels no step is taken.
            context: What every step reads.
        """
        if view.labels is None:
            return start
        client = Client(view.device, view.support, view.labels, ClassIndex(view.labels.cpu().numpy()))
        batches = draw_batches(phase, client, RoundKey(view.seed, ADAPTATION_ROUND), floating_dtype(start))
        state = {name: tensor.clone() for name, tensor in start.items()}  # programs overwrite what they are given
        for step in range(phase.steps(len(client.labels))):
            batch = {name: tensor[step] for name, tensor in batches.items()}
            state, _ = self._programs.single(phase.step, state, batch, context)(state, batch, context)
        return state
