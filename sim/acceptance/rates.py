"""Assumed acceptance rates of a task, and the texts drawn from them.

A drafted token is accepted with the rate of its position in the window, given that all tokens before it were accepted.
Everything else that a schedule depends on is a separate assumption; a schedule that needs a missing one is refused.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Annotated, Final, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from decoding.errors import ConfigError
from decoding.methods import METHODS
from decoding.record import RecordedTree
from decoding.schedule import MAX_TREE, MAX_WINDOW
from decoding.tree_shape import Path
from decoding.validation import IntKey, Many
from decoding.yaml_file import UserModel
from hwprofiles.profile import Profile


def _at_every_place(rates: object) -> object:
    """Repeat a single rate for all positions of a window."""
    return (rates,) * MAX_WINDOW if isinstance(rates, int | float) else rates


MOST_DRAWN_TOKENS: Final = 1 << 21
"""Most tokens to draw, counted again for each exit, tree, block and lookup: it takes seconds, and 100 bytes a token."""

Rate = Annotated[float, Field(ge=0, le=1)]
Rates = Annotated[Many[Rate], BeforeValidator(_at_every_place), Field(min_length=1, max_length=MAX_WINDOW)]
_Shares = Annotated[Many[Rate], Field(max_length=MAX_TREE)]


class Texts(UserModel):
    """Number, length and seed of the texts drawn for each task; all schedules and rates use the same draws."""

    num_texts: Annotated[int, Field(ge=1, le=1 << 16)] = 32
    num_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 128
    prompt_length: Annotated[int, Field(ge=1, le=1 << 24)] = 128
    seed: Annotated[int, Field(ge=0)] = 0

    def within(self, profile: Profile) -> Self:
        """Return these texts, moved and cut to the contexts in which the profile's target was measured."""
        measured = [lane.layer.contexts for lane in profile.lanes if lane.layer and len(lane.layer.contexts) > 1]
        first = max((contexts[0] for contexts in measured), default=0)
        last = min((contexts[-1] for contexts in measured), default=self.prompt_length + self.num_tokens)
        num_tokens = max(1, min(self.num_tokens, last - first + 1))
        before = min(max(self.prompt_length - 1, first), max(first, last - num_tokens + 1))
        return self.model_copy(update={"num_tokens": num_tokens, "prompt_length": before + 1})


class AssumedTree(RecordedTree):
    """Trees of a drafter with independent levels; static ones without `paths` get the nodes accepted most often."""

    @model_validator(mode="after")
    def _fits_method(self) -> Self:
        traits = METHODS[self.method]
        if not traits.is_tree:
            raise ValueError(f"{self.method} drafts no trees")
        if traits.has_dynamic_trees != bool(self.top_k):
            raise ValueError(f"top_k is {self.top_k}: dynamic trees need one, static ones have none")
        return self

    def recorded(self, paths: tuple[Path, ...]) -> RecordedTree:
        """Return the `RecordedTree` with these nodes."""
        return RecordedTree(method=self.method, drafter=self.drafter, depth=self.depth, top_k=self.top_k, paths=paths)


class TaskRates(UserModel):
    """The assumptions about one kind of task.

    Attributes:
        rates: for each position of a window, the chance that the target accepts its token if it accepted all before; a
            single number applies to all positions.
        feature_rates: the same for a draft with the target's exit features; empty for a draft without.
        alternative_rates: at [k - 1] the chance that the target's correction is among the draft's k best other
            candidates. For the bonus token, the draft's best candidate is right with the lowest of `rates`.
        exit_coverage: by exit layer, at [k - 1] the chance that a round's outcome is among the exit's k best candidates
            without the drafted token: one minus the fallback rate.
        stream_rates: for each guess of the draft's streams, the chance that the draft continues with it if all guesses
            before were right.
        blocks, lookups: names of drafters with the same rates that draft a window in one pass (method `block`), or find
            it in the text (`prompt_lookup`).
        trees: tree drafters with the same rates; a token's runners-up are right with `alternative_rates`.
    """

    rates: Rates
    feature_rates: Annotated[Many[Rate], BeforeValidator(_at_every_place), Field(max_length=MAX_WINDOW)] = ()
    alternative_rates: _Shares = ()
    exit_coverage: dict[Annotated[IntKey, Field(ge=1)], Annotated[_Shares, Field(min_length=1)]] = Field(default={})
    stream_rates: Annotated[Many[Rate], Field(max_length=8)] = ()
    blocks: Many[str] = ()
    lookups: Many[str] = ()
    trees: Many[AssumedTree] = ()

    def __hash__(self) -> int:
        # pydantic's hash fails for a mapping; equality compares all fields
        return hash((self.rates, self.alternative_rates))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for complaint in chain(self._falling_shares(), self._short_trees()):
            raise ValueError(complaint)
        if self.feature_rates and len(self.feature_rates) != len(self.rates):
            raise ValueError(f"feature_rates are {len(self.feature_rates)}, rates {len(self.rates)}")
        return self

    def _falling_shares(self) -> Iterator[str]:
        named = {"alternative_rates": self.alternative_rates}
        named |= {f"exit_coverage after layer {layer}": shares for layer, shares in self.exit_coverage.items()}
        for name, shares in named.items():
            if any(more < less for less, more in pairwise(shares)):
                yield f"{name} must not fall: {_listed(shares)} are by the number of candidates"

    def _short_trees(self) -> Iterator[str]:
        for tree in self.trees:
            if tree.depth > len(self.rates):
                yield f"trees of {tree.drafter} are {tree.depth} deep, with rates for {len(self.rates)} positions"
            needed = max((tree.top_k - 1, *chain.from_iterable(tree.paths)))
            if needed > len(self.alternative_rates) or (not tree.top_k and not self.alternative_rates):
                given = len(self.alternative_rates)
                yield f"trees of {tree.drafter} ask for {max(1, needed)} alternative_rates, given are {given}"

    def rank_rates(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the chance that the candidate of each rank is right, [positions, ranks]; rank 0 is drafted."""
        others = np.diff(self.alternative_rates, prepend=0.0)
        rates = np.array(self.rates)[:, None]
        return np.concatenate([rates, (1 - rates) * others], axis=1)

    def mean_acceptance_length(self, num_speculative_tokens: int) -> float:
        """Return the expected number of committed tokens per verification of a chain: 1 + a1 + a1 a2 + ...

        For a single rate a and g drafted tokens this is (1 - a^(g + 1)) / (1 - a) (Leviathan, 2211.17192, equation 1).
        Raises `ConfigError` unless `num_speculative_tokens` is within 0..number of rates.
        """
        if not 0 <= num_speculative_tokens <= len(self.rates):
            msg = f"num_speculative_tokens is {num_speculative_tokens}, rates are given for {len(self.rates)} positions"
            raise ConfigError(msg)
        return 1.0 + float(np.cumprod(self.rates[:num_speculative_tokens]).sum())

    def in_words(self) -> str:
        """Return the assumptions as a line, such as `0.8, 0.7 by position; exit coverage after layer 20: 0.5, 0.6`."""
        parts = [_by_place(self.rates)]
        if self.feature_rates:
            parts.append(f"with exit features {_by_place(self.feature_rates)}")
        if self.alternative_rates:
            parts.append(f"alternatives {_listed(self.alternative_rates)}")
        parts += [
            f"exit coverage after layer {layer}: {_listed(shares)}" for layer, shares in self.exit_coverage.items()
        ]
        if self.stream_rates:
            parts.append(f"streams {_listed(self.stream_rates)}")
        if self.trees:
            parts.append("trees with independent levels")
        return "; ".join(parts)


def _by_place(rates: Sequence[float]) -> str:
    return f"{rates[0]:g} at every position" if len({*rates}) == 1 else f"{_listed(rates)} by position"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
