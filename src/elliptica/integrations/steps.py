"""Noise that depends only on the step, for any trainer."""

from __future__ import annotations

import torch

from elliptica._utils.random import stream_seed


class StepNoise:
    """Generators for training steps, created for each step instead of stored.

    The noise is a function of the seed, the process and the step. Processes therefore draw different noise,
    and a resumed run draws the same noise as an uninterrupted one, with nothing to save.

    Example:
        >>> noise = StepNoise(seed=0)
        >>> a = noise.generator(torch.device("cpu"), 0, 5).initial_seed()  # process 0, step 5
        >>> a == StepNoise(seed=0).generator(torch.device("cpu"), 0, 5).initial_seed()
        True
        >>> a == noise.generator(torch.device("cpu"), 0, 5).initial_seed()  # second call of that step
        False
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._step: tuple[int, ...] | None = None
        self._calls = 0

    def generator(self, device: torch.device, *step: int) -> torch.Generator:
        """Return the generator of the next call in ``step``, on the device of the data if that is faster."""
        self._calls = self._calls + 1 if step == self._step else 0
        self._step = step
        source = device if device.type == "cuda" else "cpu"
        seed = stream_seed("integrations", self.seed, *step, self._calls)
        return torch.Generator(source).manual_seed(seed)
