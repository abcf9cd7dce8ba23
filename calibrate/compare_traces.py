"""Compares simulated and measured traces of one schedule over the same prompts.

It finds the first round of each prompt in which they differ, and computes what the measured times would have been at
the machine's speed that the profile is for. Nothing here runs a model or a simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from decoding.trace import Round, Trace

Decider = Literal["target", "draft", "lost lane"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TracePair:
    """One prompt decoded with one schedule, simulated and measured.

    `texts`: token ids of (simulated, measured). `pace`: the anchors' time around the real run over that during
    calibration.
    """

    prompt: str
    simulated: Trace
    measured: Trace
    texts: tuple[Sequence[int], Sequence[int]]
    pace: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first round of a prompt in which simulation and measurement differ.

    Attributes:
        position: number of equal tokens before that round.
        simulated, measured: the round in each; None if the sequence had ended before.
        by: who decided differently: the target (it chose another token in that round), else the draft; or a draft's
            lane was lost.
        margin: the target's best logit minus its second best at its first differing token: near zero, rounding decided.
            None if no token of the target differs.
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
    """The comparison of one schedule's simulated and measured traces.

    `at_anchor_s`: measured seconds of each prompt, converted to the machine's speed that the profile is for.
    """

    schedule: str
    num_prompts: int
    divergences: tuple[Divergence, ...]
    at_anchor_s: tuple[float, ...]
    is_tree: bool

    @property
    def num_equal(self) -> int:
        """Number of prompts whose rounds are as simulated."""
        return self.num_prompts - len(self.divergences)

    @property
    def same_rounds(self) -> bool:
        """Whether all rounds of all prompts are as simulated."""
        return not self.divergences


def compare(
    schedule: str,
    pairs: Sequence[TracePair],
    margins: Mapping[str, Sequence[float]] | None = None,
    *,
    is_tree: bool = False,
) -> Comparison:
    """Compare the traces of one schedule, given as one pair per prompt (at least one).

    `margins`: by prompt, the target's logit margin at each position of its text.
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
    """Return the measured seconds of each prompt at the machine's speed that the profile is for.

    The pace of a single run is noisy. So the total is the total measured time over the mean pace, weighted by simulated
    times; single paces only distribute it over the prompts.
    """
    alone = [pair.measured.decode_s / pair.pace for pair in pairs]
    expected_s = sum(pair.simulated.decode_s for pair in pairs)
    pace = sum(pair.simulated.decode_s * pair.pace for pair in pairs) / expected_s
    total_s = sum(pair.measured.decode_s for pair in pairs) / pace
    return tuple(seconds * total_s / sum(alone) for seconds in alone)


def first_divergence(pair: TracePair, margins: Sequence[float] = ()) -> Divergence | None:
    """Return the first round that differs in more than its times; None if there is none."""
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
    """Return who decided differently in a round that starts at `position`; if the target did, also at which token."""
    if pair.measured.has_loss:
        return "lost lane", None
    pairs_of_tokens = enumerate(zip_longest(*pair.texts))
    place = next((place for place, (ours, theirs) in pairs_of_tokens if ours != theirs), None)
    end = position + (parted.num_committed if parted is not None else 0)
    return ("target", place) if place is not None and place < end else ("draft", None)
