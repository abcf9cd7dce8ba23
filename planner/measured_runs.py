"""What real runs of several schedules took, put so that any two can be compared on the prompts that both ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import NamedTuple

from decoding.schedule import Schedule
from planner.kinds import kind_of
from planner.paired_ratio import CommonFit, Pairs, Ratio, paired_ratio, ratio_by_rounds


class PromptTime(NamedTuple):
    """What one prompt took: seconds of decoding, the tokens committed in them, and the same time simulated."""

    seconds: float
    tokens: int
    simulated_s: float | None = None


class KnownTime(NamedTuple):
    """Simulated seconds of a recorded prompt, in full, and its kind."""

    seconds: float
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """A schedule that was run.

    Attributes:
        name: what tables call it; no two share one.
        schedule: what was run.
        predicted_s: predicted time per token.
        prompts: what was measured, by prompt. A prompt that failed, or was left out, is not in it.
        recorded: every recorded prompt as it is simulated: what is known of those that were not run. Empty where
            nothing is.
    """

    name: str
    schedule: Schedule
    predicted_s: float
    prompts: Mapping[str, PromptTime]
    recorded: Mapping[str, KnownTime] = field(default_factory=dict, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return kind_of(self.schedule) == "plain"

    @property
    def done(self) -> dict[str, PromptTime]:
        """What of its prompts came to an end."""
        return {name: time for name, time in self.prompts.items() if time.seconds > 0 and time.tokens > 0}


@dataclass(frozen=True)
class Runs:
    """The schedules that can be compared: any two of them have run a prompt that all have run.

    Attributes:
        finished: these schedules.
    """

    finished: tuple[MeasuredSchedule, ...]

    @classmethod
    def of(cls, schedules: Sequence[MeasuredSchedule]) -> Runs:
        """Leave out what has run no prompt, and what shares none with those that ran more."""
        left = sorted((one for one in schedules if one.done), key=lambda one: len(one.done), reverse=True)
        while left and not set.intersection(*(set(one.done) for one in left)):
            left.pop()
        return cls(tuple(one for one in schedules if one in left))

    def ratio(self, one: MeasuredSchedule, other: MeasuredSchedule, *, recorded: Pairs | None = None) -> Ratio:
        """Return the other's time over one's, over all recorded prompts where their rounds are known.

        `recorded` are simulated times of these prompts, if not of their whole texts.
        """
        if self._costs is None:
            return self.as_run(one, other)
        recorded = recorded or known_pairs(one.recorded, other.recorded)
        return ratio_by_rounds(recorded, self._costs.difference(one.name, other.name))

    @cached_property
    def _costs(self) -> CommonFit | None:
        """What rounds cost beyond their simulation; None where a schedule's rounds are not known."""
        known = {
            one.name: {
                name: log(time.seconds / time.simulated_s)
                for name, time in one.done.items()
                if time.simulated_s is not None
            }
            for one in self.finished
            if one.recorded
        }
        return CommonFit(known) if len(known) == len(self.finished) else None

    def as_run(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Ratio:
        """Return the other's measured time over one's, on the prompts that both have run.

        Each counts for as many tokens in both: texts may differ by a few.
        """
        shared = [(ours, other.done[name]) for name, ours in one.done.items() if name in other.done]
        lengths = [max(ours.tokens, theirs.tokens) for ours, theirs in shared]
        both = zip(*shared, strict=True)
        ours, theirs = (
            [time.seconds / time.tokens * length for time, length in zip(times, lengths, strict=True)] for times in both
        )
        return paired_ratio(ours, theirs)

    def over_plain(self, schedules: Sequence[MeasuredSchedule]) -> tuple[Ratio | None, ...]:
        """Return each one's measured speed over that of the plain one predicted fastest; None where one is not here."""
        plain = next(iter(self.side(plain=True)), None)
        return tuple(
            None if plain is None or one not in self.finished else self.as_run(one, plain) for one in schedules
        )

    def tells_faster(self, one: MeasuredSchedule, other: MeasuredSchedule) -> bool:
        """Return whether the runs leave no doubt that `one` is faster."""
        return self.ratio(one, other).outcome == "faster"

    def relative_s(self, one: MeasuredSchedule) -> float:
        """Return its time over that of a schedule that has run most prompts."""
        return self.ratio(max(self.finished, key=lambda other: len(other.done)), one).value

    @property
    def fastest(self) -> MeasuredSchedule | None:
        """The one measured fastest, by however little."""
        return min(self.finished, key=self.relative_s, default=None)

    def side(self, *, plain: bool) -> list[MeasuredSchedule]:
        """Return the plain ones, or those that draft; the one predicted fastest comes first."""
        return sorted((one for one in self.finished if one.is_plain == plain), key=lambda one: one.predicted_s)


def known_pairs(one: Mapping[str, KnownTime], other: Mapping[str, KnownTime]) -> Pairs:
    """Return the simulated times of two schedules on all prompts that are recorded for both."""
    names = [name for name in one if name in other]
    ours, theirs = ([side[name].seconds for name in names] for side in (one, other))
    return Pairs(ours, theirs, [one[name].kind for name in names])
