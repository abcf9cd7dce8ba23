"""Holds the simulator to account: simulated against measured traces of one schedule over the same prompts.

Two questions, kept apart: did both worlds decide the same (round by round, token by token), and how far is the
predicted time from the measured one. Nothing here runs a model or a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from decoding.errors import TraceError
from decoding.metrics import tpot_s
from decoding.trace import Round, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class TracePair:
    """One prompt under one schedule, in both worlds."""

    prompt: str
    simulated: Trace
    measured: Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first round of a prompt in which the worlds part.

    Attributes:
        prompt: name of the prompt.
        round: index of the round.
        position: new tokens committed before it, on which both worlds agree.
        simulated, measured: that round in each world; None where a world had ended before.
        margin: how far the target's best logit is above its second best at the first differing token;
            None if unknown. A margin near zero means that rounding decided.
    """

    prompt: str
    round: int
    position: int
    simulated: Round | None
    measured: Round | None
    margin: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One schedule in both worlds.

    Attributes:
        schedule: name of the schedule.
        num_prompts: prompts compared.
        divergences: the first differing round of each prompt that has one.
        simulated_tpot_s, measured_tpot_s: seconds per committed token over all prompts.
    """

    schedule: str
    num_prompts: int
    divergences: tuple[Divergence, ...]
    simulated_tpot_s: float
    measured_tpot_s: float

    @property
    def same_rounds(self) -> bool:
        """Whether both worlds decided the same everywhere."""
        return not self.divergences

    @property
    def tpot_error(self) -> float:
        """Simulated over measured time per token, minus one: positive is too pessimistic."""
        return self.simulated_tpot_s / self.measured_tpot_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """How good the predictions of several schedules are: absolute relative errors of `tpot_s`."""

    median_error: float
    worst_error: float
    worst_schedule: str
    same_rounds: bool


def compare(
    schedule: str, pairs: Sequence[TracePair], margins: Mapping[str, Sequence[float]] | None = None
) -> Comparison:
    """Compare the worlds over the traces of one schedule.

    Args:
        schedule: name of the schedule, for the report.
        pairs: one per prompt.
        margins: for each prompt's name the target's logit margin at every position of its text.

    Raises:
        TraceError: there is nothing to compare, or a trace is of the wrong world or has no time in it.
    """
    _check(schedule, pairs)
    margins = margins or {}
    found = (first_divergence(pair, margins.get(pair.prompt, ())) for pair in pairs)
    return Comparison(
        schedule=schedule,
        num_prompts=len(pairs),
        divergences=tuple(divergence for divergence in found if divergence is not None),
        simulated_tpot_s=tpot_s([pair.simulated for pair in pairs]),
        measured_tpot_s=tpot_s([pair.measured for pair in pairs]),
    )


def first_divergence(pair: TracePair, margins: Sequence[float] = ()) -> Divergence | None:
    """The first round that differs in anything but its times; None if none does."""
    position = 0
    for index, (simulated, measured) in enumerate(zip_longest(pair.simulated.rounds, pair.measured.rounds)):
        if simulated is None or measured is None or simulated[2:] != measured[2:]:
            place = position + _agreeing(simulated, measured)
            return Divergence(
                prompt=pair.prompt,
                round=index,
                position=position,
                simulated=simulated,
                measured=measured,
                margin=margins[place] if place < len(margins) else None,
            )
        position += simulated.num_committed
    return None


def accuracy(comparisons: Sequence[Comparison]) -> Accuracy:
    """Sum several schedules up.

    Raises:
        TraceError: there is none.
    """
    if not comparisons:
        msg = "no schedule was compared"
        raise TraceError(msg)
    worst = max(comparisons, key=lambda one: abs(one.tpot_error))
    return Accuracy(
        median_error=median(abs(one.tpot_error) for one in comparisons),
        worst_error=abs(worst.tpot_error),
        worst_schedule=worst.schedule,
        same_rounds=all(one.same_rounds for one in comparisons),
    )


def _agreeing(simulated: Round | None, measured: Round | None) -> int:
    """Tokens of two differing rounds that are the same: those both accepted of one window.

    Of a chain that is certain; in a tree two paths may part, but not where both hold the text.
    """
    if simulated is None or measured is None:
        return 0
    return min(simulated.num_accepted, measured.num_accepted)


def _check(schedule: str, pairs: Sequence[TracePair]) -> None:
    if not pairs:
        msg = f"schedule {schedule}: no prompt to compare"
        raise TraceError(msg)
    for pair in pairs:
        for trace, world in ((pair.simulated, "simulated"), (pair.measured, "measured")):
            if trace.world != world:
                msg = f"schedule {schedule}, prompt {pair.prompt}: expected a {world} trace, found a {trace.world} one"
                raise TraceError(msg)
            if not trace.rounds or trace.decode_s <= 0:
                msg = f"schedule {schedule}, prompt {pair.prompt}: the {world} trace has no rounds or no decode_s"
                raise TraceError(msg)
