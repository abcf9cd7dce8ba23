"""Estimates the progress and the remaining time of a job of several stages."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from decoding.progress import ReportProgress

_TRUSTED_SHARE: Final = 0.1
"""From this share of a stage on, its remaining time is estimated from its own speed, not from what was expected."""

_SHORTEST_S: Final = 15.0
"""Seconds that a stage takes at least, even if no time is left for it."""


class StageReport(NamedTuple):
    """The state of a job: stage, number (from 1), step, estimated seconds left in all, share done (it never falls)."""

    stage: str
    number: int
    num_stages: int
    step: str
    left_s: float
    share: float


class Stages:
    """Stages that follow each other; each one reports its step and the share of itself that is done."""

    def __init__(
        self,
        expected_s: Mapping[str, float],
        show: Callable[[StageReport], None],
        *,
        limit_s: float = inf,
        clock: Callable[[], float],
    ) -> None:
        """Pass reports to `show`. Stages take `expected_s` each; later ones are shortened to end within `limit_s`."""
        self._limit_s, self._shown = limit_s, 0.0
        self._expected_s = dict(expected_s)
        self._names = list(expected_s)
        self._show = show
        self._clock = clock
        self._start_s = self._stage_start_s = clock()

    @property
    def elapsed_s(self) -> float:
        """Return seconds since the job began."""
        return self._clock() - self._start_s

    def expect(self, stage: str, seconds: float) -> None:
        """Replace the estimate of how long a later stage will take."""
        self._expected_s[stage] = seconds

    def begin(self, stage: str, *, by_time: bool = False) -> ReportProgress:
        """Begin a stage; return the function to report its steps to.

        `by_time`: it ends when its expected time is over, whatever share of its steps is done by then.
        """
        self._stage_start_s = self._clock()
        place = self._names.index(stage)

        def report(step: str, share: float, /) -> None:
            done_s, left_s = self.elapsed_s, self._left_s(stage, 0.0 if by_time else share, self._names[place + 1 :])
            if done_s + left_s > 0:
                self._shown = max(self._shown, done_s / (done_s + left_s))
            self._show(StageReport(stage, place + 1, len(self._names), step, left_s, self._shown))

        report("starting", 0.0)
        return report

    def _left_s(self, stage: str, share: float, later: Sequence[str]) -> float:
        """Return the seconds left for this and all later stages, which are shortened to the limit, but not to nothing.

        A stage that takes longer than expected is assumed to be as short as possible.
        """
        spent_s = self._clock() - self._stage_start_s
        own_s = spent_s * (1 - share) / share if share >= _TRUSTED_SHARE else self._expected_s[stage] - spent_s
        own_s = max(0.0, own_s)
        shortest_s = sum(min(self._expected_s[name], _SHORTEST_S) for name in later)
        if spent_s > self._expected_s[stage] or self.elapsed_s >= self._limit_s:
            shortest_s += own_s
        cut_s = max(self._limit_s - self.elapsed_s, shortest_s)
        return min(own_s + sum(self._expected_s[name] for name in later), cut_s)
