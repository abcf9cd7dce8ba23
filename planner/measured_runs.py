"""What real runs of several schedules on the same prompts took, put so that any two can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoding.schedule import Schedule
from planner.kinds import kind_of
from planner.paired_ratio import Ratio, paired_ratio


class PromptTime(NamedTuple):
    """What one prompt took: seconds of decoding, and the tokens that were committed in them."""

    seconds: float
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """A schedule that was run.

    Attributes:
        name: what tables call it; no two share one.
        schedule: what was run.
        predicted_s: predicted time per token.
        prompts: what was measured, by prompt. A prompt that failed is not in it.
    """

    name: str
    schedule: Schedule
    predicted_s: float
    prompts: Mapping[str, PromptTime]

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return kind_of(self.schedule) == "plain"


@dataclass(frozen=True, slots=True)
class Runs:
    """The schedules that finished every prompt, with comparable times.

    Attributes:
        finished: these schedules.
        times_s: seconds by prompt, each prompt scaled to the same number of tokens for all: texts may differ by a few.
    """

    finished: tuple[MeasuredSchedule, ...]
    times_s: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, schedules: Sequence[MeasuredSchedule]) -> Runs:
        """Leave out what lacks a prompt that another schedule has."""
        prompts = list(dict.fromkeys(prompt for one in schedules for prompt in _done(one)))
        finished = tuple(one for one in schedules if prompts and set(prompts) <= _done(one).keys())
        length = {prompt: max(one.prompts[prompt].tokens for one in finished) for prompt in prompts if finished}
        times_s = {
            one.name: tuple(
                one.prompts[prompt].seconds / one.prompts[prompt].tokens * length[prompt] for prompt in prompts
            )
            for one in finished
        }
        return cls(finished, times_s)

    def ratio(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Ratio:
        """Return the other's time over one's."""
        return paired_ratio(self.times_s[one.name], self.times_s[other.name])

    def over_plain(self, schedules: Sequence[MeasuredSchedule]) -> tuple[Ratio | None, ...]:
        """Return the speed of each over that of the plain one predicted fastest; None where one was not finished."""
        plain = next(iter(self.side(plain=True)), None)
        return tuple(None if plain is None or one not in self.finished else self.ratio(one, plain) for one in schedules)

    def tells_faster(self, one: MeasuredSchedule, other: MeasuredSchedule) -> bool:
        """Return whether the runs leave no doubt that `one` is faster."""
        return self.ratio(one, other).outcome == "faster"

    def total_s(self, one: MeasuredSchedule) -> float:
        """Return its time for all prompts."""
        return sum(self.times_s[one.name])

    @property
    def fastest(self) -> MeasuredSchedule | None:
        """The one measured fastest, by however little."""
        return min(self.finished, key=self.total_s, default=None)

    def side(self, *, plain: bool) -> list[MeasuredSchedule]:
        """Return the plain ones, or those that draft; the one predicted fastest comes first."""
        return sorted((one for one in self.finished if one.is_plain == plain), key=lambda one: one.predicted_s)


def _done(one: MeasuredSchedule) -> dict[str, PromptTime]:
    """Return what of its prompts came to an end."""
    return {name: time for name, time in one.prompts.items() if time.seconds > 0 and time.tokens > 0}
