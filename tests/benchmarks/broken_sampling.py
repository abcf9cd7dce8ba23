"""Mistakes that look right and are not, each made in the product's own code for as long as a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from decoding.messages import Candidates, Verdict, Window
from runtime.arrays import Array, concatenated
from runtime.drafters.language_model import draft_passes
from runtime.verification import rules
from runtime.verification.rules import probabilities, sample, uniform


class Mistake(NamedTuple):
    """Replacements of names in a module, and the schedule that they are made in."""

    schedule: str
    module: Any
    replaced: dict[str, Callable[..., Any]]

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the mistake."""
        with patch.multiple(self.module, **self.replaced):
            yield


def _bonus_from_the_row_before(logits_TV: Array, window: Window, *arguments: Any) -> Verdict:
    rows = concatenated([logits_TV[:-1], logits_TV[-2:-1]]) if window.tokens else logits_TV
    return _verify_ratio(rows, window, *arguments)


def _without_the_ratio(
    logits_TV: Array, window: Window, temperature: float, own: Callable[[int], float], accept: Callable[[int], float]
) -> Verdict:
    def over_the_drafts(depth: int) -> float:
        drafted = window.distributions[depth]
        return accept(depth) / drafted.probabilities[drafted.tokens.index(window.tokens[depth])]

    return _verify_ratio(logits_TV, window, temperature, own, over_the_drafts)


def _drawn_again(logits_TV: Array, window: Window, temperature: float, own: Callable[[int], float]) -> Verdict:
    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        target = probabilities(logits_TV[row], temperature)
        token = sample(target, own(depth))
        return token if token in drafted or not drafted else sample(target, own(1000 + depth))

    return rules._follow(window, choose)


def _without_ruling_out(
    logits_TV: Array,
    window: Window,
    temperature: float,
    own: Callable[[int], float],
    accept: Callable[[int, int], float],
) -> Verdict:
    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        target = probabilities(logits_TV[row], temperature)
        accepted = [token for rank, token in enumerate(drafted) if accept(depth, rank) < target[token]]
        return accepted[0] if accepted else sample(target, own(depth))

    return rules._follow(window, choose)


def _with_the_drafts_draws(seed: int, _stream: str, *place: int) -> float:
    return uniform(seed, "draft", *place)


def _likeliest(candidates: Candidates, draw: float) -> int:
    return candidates.tokens[0]


_verify_ratio = rules.verify_ratio
CHAIN: Final = "speculative, ratio"
MISTAKES: Final = {
    "a refused token is replaced by a sample of the target": Mistake(
        CHAIN, rules, {"residual": lambda target, _: target}
    ),
    "a drafted token is accepted with the target's probability, not the ratio": Mistake(
        CHAIN, rules, {"verify_ratio": _without_the_ratio}
    ),
    "tokens are accepted with the random numbers that drafted them": Mistake(
        CHAIN, rules, {"uniform": _with_the_drafts_draws}
    ),
    "the bonus token comes from the row before": Mistake(CHAIN, rules, {"verify_ratio": _bonus_from_the_row_before}),
    "refused siblings are not ruled out": Mistake("medusa, one-hot", rules, {"verify_one_hot": _without_ruling_out}),
    "the argmax is drafted and tested as if it were sampled": Mistake(CHAIN, draft_passes, {"draw_from": _likeliest}),
    "a token that does not match is drawn again": Mistake("speculative, match", rules, {"verify_match": _drawn_again}),
}
"""By what they are: the four classic ones first, then one of every other rule."""
