"""What drafters share that read the target's features: they compute by torch, where their weights are."""

import torch

from decoding.schedule import Schedule
from runtime.drafters.window_drafter import Steps, WindowDrafter

_READ = 40
"""Tokens of the text that is drafted after for nothing."""


class FeatureDrafter(WindowDrafter):
    """A drafter whose weights are on a device, of a target of a hidden size."""

    device: torch.device
    dtype: torch.dtype
    hidden_size: int
    _warm_for: Schedule | None = None

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> None:  # noqa: ARG002
        """See `WindowDrafter`; a GPU loads a kernel when it is first called, which takes as long as many rounds."""
        if self.device.type != "cpu" and schedule != self._warm_for:
            self.warm_up(schedule)
            self._warm_for = schedule

    def warm_up(self, schedule: Schedule) -> None:
        """Draft after every number of tokens that a round may commit; the current sequence is lost."""
        most = schedule.num_speculative_tokens + 1
        size = len(self.feature_layers) * self.hidden_size
        features_TE = torch.zeros(_READ, size, dtype=self.dtype, device=self.device)
        capacity = _READ + most * (most + 1) // 2
        self.prefill([0] * _READ, schedule=schedule, capacity=capacity, features_TE=features_TE[1:])
        _finish(self.rollout())
        for count in range(1, most + 1):
            _finish(self.rollout([0] * count, features_TE[:count]))


def _finish(steps: Steps) -> None:
    for _ in steps:
        pass
