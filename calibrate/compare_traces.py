"""Compares simulated with measured traces of one schedule over the same prompts.

Did both worlds take the same decisions, round by round and token by token, and what would the measured times have been
at the pace of the calibration? Nothing here runs a model or a simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from decoding.trace import Round, Trace

Decider = Literal["target", "draft", "lost lane"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TracePair:
    """One prompt under one schedule, in both worlds.

    `pace` is the time of known work around the real run over its time during calibration; `texts` are the token ids of
    both worlds.
    """

    prompt: str
    simulated: Trace
    measured: Trace
    texts: tuple[Sequence[int], Sequence[int]]
    pace: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first round of a prompt in which the two worlds differ, after `position` tokens on which they agree.

    A world that had ended before has no round. `by` is the target if it chose another token in that round, else
    whatever drafts; a lost lane drafts nothing any more. `margin` is the target's best logit over its second best at
    the token where it differs: near zero, rounding decided. None if no token of the target differs.
    """

    prompt: str
    round: int
    position: int
    simulated: Round | None
    measured: Round | None
    by: Decider
    margin: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One schedule in both worlds: the rounds that differ.

    `at_anchor_s` are the measured seconds of each prompt at the machine's pace during calibration.
    """

    schedule: str
    num_prompts: int
    divergences: tuple[Divergence, ...]
    at_anchor_s: tuple[float, ...]
    is_tree: bool

    @property
    def num_equal(self) -> int:
        """Texts whose rounds were as simulated."""
        return self.num_prompts - len(self.divergences)

    @property
    def same_rounds(self) -> bool:
        """Whether both worlds decided the same everywhere."""
        return not self.divergences


def compare(
    schedule: str,
    pairs: Sequence[TracePair],
    margins: Mapping[str, Sequence[float]] | None = None,
    *,
    is_tree: bool = False,
) -> Comparison:
    """Return how the worlds compare over the traces of one schedule: a pair per prompt, one at least.

    `margins` are by prompt the target's logit margin at every position of its text.
    """
    margins = margins or {}
    found = (first_divergence(pair, margins.get(pair.prompt, ())) for pair in pairs)
    return Comparison(
        schedule=schedule,
        num_prompts=len(pairs),
        divergences=tuple(divergence for divergence in found if divergence is not None),
        at_anchor_s=_at_anchor_s(pairs),
        is_tree=is_tree,
    )


def _at_anchor_s(pairs: Sequence[TracePair]) -> tuple[float, ...]:
    """Measured seconds of each prompt, had the machine kept the pace of its calibration.

    A pace is measured around a run, so a single one is noisy: the sum is that of the measured times over the mean pace,
    with prompts weighted by their simulated times.
    """
    alone = [pair.measured.decode_s / pair.pace for pair in pairs]
    expected_s = sum(pair.simulated.decode_s for pair in pairs)
    pace = sum(pair.simulated.decode_s * pair.pace for pair in pairs) / expected_s
    total_s = sum(pair.measured.decode_s for pair in pairs) / pace
    return tuple(seconds * total_s / sum(alone) for seconds in alone)


def first_divergence(pair: TracePair, margins: Sequence[float] = ()) -> Divergence | None:
    """Return the first round that differs in anything but its times; None if none does."""
    position = 0
    for index, (simulated, measured) in enumerate(zip_longest(pair.simulated.rounds, pair.measured.rounds)):
        if simulated is None or measured is None or simulated[2:] != measured[2:]:
            by, place = _who(pair, position, measured or simulated)
            return Divergence(
                prompt=pair.prompt,
                round=index,
                position=position,
                simulated=simulated,
                measured=measured,
                by=by,
                margin=margins[place] if place is not None and place < len(margins) else None,
            )
        position += simulated.num_committed
    return None


def _who(pair: TracePair, position: int, parted: Round | None) -> tuple[Decider, int | None]:
    """Return who decided differently in a round that starts at `position`, and at which token if it was the target."""
    if pair.measured.has_loss:
        return "lost lane", None
    pairs_of_tokens = enumerate(zip_longest(*pair.texts))
    place = next((place for place, (ours, theirs) in pairs_of_tokens if ours != theirs), None)
    end = position + (parted.num_committed if parted is not None else 0)
    return ("target", place) if place is not None and place < end else ("draft", None)
