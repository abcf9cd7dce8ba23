"""A machine that changes its mind: cores that switch between two speeds, spikes, and a drift of all of them."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Weather:
    """What a shared machine does to all times, by a seed; nothing by default.

    Every core switches between its own speed and one `slow` times as slow, after stretches of about `fast_s` and
    `slow_s` seconds; a lane of several cores is as slow as the slowest. One work in `spike_every` takes `spike_s` more,
    and everything becomes slower by `drift` in a hundred seconds.
    """

    seed: int = 0
    slow: float = 1.0
    fast_s: float = 3.0
    slow_s: float = 1.5
    spike_every: int = 0
    spike_s: float = 10e-3
    drift: float = 0.0
    _switches: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def factor(self, cores: Sequence[int], now_s: float) -> float:
        return max(self._of_core(core, now_s) for core in cores) * (1 + self.drift * now_s / 100)

    def spike(self) -> float:
        return self.spike_s if self.spike_every and self._random.randrange(self.spike_every) == 0 else 0.0

    def mean(self, num_cores: int) -> float:
        """Of `factor` over much work done in turn, as tokens are: a slow stretch has room for less of it."""
        fast_share = (self.fast_s / (self.fast_s + self.slow_s)) ** num_cores
        return 1 / (fast_share + (1 - fast_share) / self.slow)

    def _of_core(self, core: int, now_s: float) -> float:
        if self.slow == 1.0:
            return 1.0
        share = self.slow_s / (self.fast_s + self.slow_s)
        switches = self._switches.setdefault(core, [0.0] * (1 + (self._random.random() < share)))
        while switches[-1] <= now_s:
            usual_s = self.fast_s if len(switches) % 2 else self.slow_s
            switches.append(switches[-1] + self._random.expovariate(1 / usual_s))
        return 1.0 if bisect_right(switches, now_s) % 2 else self.slow
