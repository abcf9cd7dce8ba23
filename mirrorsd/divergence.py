"""Where two traces of one schedule part: rounds are compared, never times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from decoding.trace import Round, Trace


class Divergence(NamedTuple):
    """The first round in which two worlds disagree about a prompt.

    Attributes:
        prompt: index of the prompt.
        round: index of the round.
        position: new tokens that were committed before it; both worlds agree on all of them.
        predicted, measured: that round in either world; None where a world had already ended.
    """

    prompt: int
    round: int
    position: int
    predicted: Round | None
    measured: Round | None

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt + 1}, round {self.round + 1}, behind {self.position} new tokens: "
            f"predicted {_told(self.predicted)}, measured {_told(self.measured)}"
        )


def first_divergence(prompt: int, predicted: Trace, measured: Trace) -> Divergence | None:
    """The first differing round of one prompt; None if every round is the same."""
    position = 0
    for index in range(max(len(predicted.rounds), len(measured.rounds))):
        ours, theirs = _at(predicted.rounds, index), _at(measured.rounds, index)
        if ours is None or theirs is None or _decisions(ours) != _decisions(theirs):
            return Divergence(prompt, index, position, ours, theirs)
        position += ours.num_committed
    return None


def divergences(predicted: Sequence[Trace], measured: Sequence[Trace]) -> list[Divergence]:
    """The first differing round of every prompt that has one; the traces are in the same order of prompts."""
    pairs = enumerate(zip(predicted, measured, strict=True))
    found = (first_divergence(index, ours, theirs) for index, (ours, theirs) in pairs)
    return [item for item in found if item is not None]


def _at(rounds: Sequence[Round], index: int) -> Round | None:
    return rounds[index] if index < len(rounds) else None


def _decisions(entry: Round) -> tuple[Any, ...]:
    """All of a round but its times."""
    return entry[2:]


def _told(entry: Round | None) -> str:
    if entry is None:
        return "no further round"
    branch = {None: "", True: ", hit", False: ", miss"}[entry.hit]
    return f"{entry.num_accepted} of {entry.num_drafted} accepted and then token {entry.outcome[1]}{branch}"
