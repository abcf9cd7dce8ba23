"""One text of an acceptance record, and what drafters and exits propose at every position of it.

Position i means: i new tokens are committed. Arrays are numpy, ids are of the target's vocabulary, and unused entries
are -1. `repeats_itself` detects texts that are easy to draft because they repeat themselves.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from decoding.errors import RecordError
from decoding.schedule import MAX_TREE, MAX_WINDOW, Method, Schedule
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import parents_of
from decoding.validation import Many
from decoding.yaml_file import StrictModel

_LONGEST_CYCLE: Final = 16
_LEAST_CYCLES: Final = 3
_LEAST_SHARE: Final = 0.25
"""Least share of a text that its repeating end must have."""
_GRAM: Final = 4
_MOST_REPEATED: Final = 0.5
"""Share of repeated 4-grams above which a text repeats itself; lists and code stay below."""


def repeats_itself(text: Sequence[int]) -> bool:
    """Return whether a text ends with a cycle, at least three times, or more than half of its 4-grams are repeats."""
    return _ends_in_cycle(text) or _ends_in_cycle(text[:-1]) or _repeated_share(text) > _MOST_REPEATED


def _ends_in_cycle(text: Sequence[int]) -> bool:
    least = _LEAST_SHARE * len(text)
    for period in range(1, min(_LONGEST_CYCLE, len(text) // _LEAST_CYCLES) + 1):
        length = period
        while length < len(text) and text[-1 - length] == text[period - 1 - length]:
            length += 1
        if length >= max(_LEAST_CYCLES * period, least, _GRAM):
            return True
    return False


def _repeated_share(text: Sequence[int]) -> float:
    grams = [tuple(text[start : start + _GRAM]) for start in range(len(text) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


Ids = NDArray[np.int32]
Shares = NDArray[np.float32]


def _checked_paths(paths: tuple[TreePath, ...]) -> tuple[TreePath, ...]:
    parents_of(paths)  # raises ValueError if they are no tree
    return paths


Paths = Annotated[Many[Many[Annotated[int, Field(ge=0)]]], AfterValidator(_checked_paths)]


def hash_of_ids(ids: Sequence[int]) -> str:
    """Return the SHA-256, in hexadecimal, of token ids as little-endian 32-bit integers."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()


def _nothing() -> Ids:
    return np.zeros((0, 0), dtype=np.int32)


def _no_shares() -> Shares:
    return np.zeros((0, 0), dtype=np.float32)


class RecordedTree(StrictModel):
    """The trees of one drafter in a record, for any `tree_size`.

    `depth` and `top_k` are the schedule's `num_speculative_tokens` and `tree_top_k`; `paths` are the nodes of a static
    tree in their order (`decoding.tree_shape`), empty for dynamic trees.
    """

    method: Method
    drafter: str
    depth: Annotated[int, Field(ge=1, le=MAX_WINDOW)]
    top_k: Annotated[int, Field(ge=0, le=MAX_TREE)] = 0
    paths: Paths = ()

    def __str__(self) -> str:
        return f"{self.method} of {self.drafter}, {self.depth} deep"

    def answers(self, schedule: Schedule) -> bool:
        """Return whether these are the trees of a schedule."""
        asked = (schedule.method, schedule.drafter, schedule.num_speculative_tokens, schedule.tree_top_k)
        return asked == (self.method, self.drafter, self.depth, self.top_k)


class RecordedChain(StrictModel):
    """The chains of a drafter other than the draft model, such as prompt lookup."""

    method: Method
    drafter: str

    def __str__(self) -> str:
        return f"{self.method} of {self.drafter}"

    def answers(self, schedule: Schedule) -> bool:
        """Return whether these are the windows of a schedule."""
        return (schedule.method, schedule.drafter) == (self.method, self.drafter)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRecord:
    """The text that the target wrote for one prompt, and what drafters and exits propose along it.

    Row i of an array is about the prefix text[:i].

    Attributes:
        category: kind of task, or "".
        prompt_hash: `hash_of_ids` of the prompt; None in older records and for drawn texts.
        text: N ids; the text ends with EOS or at `max_new_tokens`.
        rollouts: the next `max_window` tokens that the draft model drafts without exit features, [N, W]; empty without
            a draft model.
        feature_rollouts: the same with exit features at every committed position; empty ([0, W]) without them.
        alternatives: the draft's best ids for the next token, the candidates for draft-sourced roots, [N, F].
        exits: for each exit layer, the exit's best ids for the next token, [N, K].
        tree_ranks: for each tree of the record, the indices (best node first) of the nodes that hold text[i],
            text[i + 1], ...; -1 for a token that no size of the tree has, [N, depth].
        chain_drafts: for each chain of the record, the drafted tokens, [N, W]; -1 after the end of a shorter window.
        margins: the target's best logit minus its second best at each token, [N]; empty if unknown. Near zero, other
            arithmetic may choose another token.
        stream_hits: after each token of `rollouts`, how many of the streams' guesses in a row the draft model itself
            drafts next, [N, W]; empty ([0, W]) for a draft without streams.
        feature_stream_hits: the same for `feature_rollouts`.
        draft_acceptance: for a draft that samples (rule `ratio`, temperature above zero), the probability that its
            token at each place is accepted, given that all before were and that the text goes on as recorded, [N, W].
            With p and q the target's and the draft's probabilities of the text's token it is min(1, q / p), so that
            replayed acceptance is distributed as in real runs.
        refused_drafts: the token of such a draft at each place if it is refused, [N, W]; -1 where it never is.
        feature_draft_acceptance, feature_refused_drafts: the same with exit features.
    """

    name: str
    category: str
    prompt_length: int
    text: Ids
    rollouts: Ids = field(default_factory=_nothing)
    feature_rollouts: Ids = field(default_factory=_nothing)
    alternatives: Ids = field(default_factory=_nothing)
    exits: dict[int, Ids]
    tree_ranks: tuple[Ids, ...] = ()
    chain_drafts: tuple[Ids, ...] = ()
    margins: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    stream_hits: Ids = field(default_factory=_nothing)
    feature_stream_hits: Ids = field(default_factory=_nothing)
    draft_acceptance: Shares = field(default_factory=_no_shares)
    refused_drafts: Ids = field(default_factory=_nothing)
    feature_draft_acceptance: Shares = field(default_factory=_no_shares)
    feature_refused_drafts: Ids = field(default_factory=_nothing)
    prompt_hash: str | None = None

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal, arrays included."""
        if not isinstance(other, PromptRecord):
            return NotImplemented
        return all(_are_same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.name, self.prompt_length, self.prompt_hash))

    @property
    def repeats_itself(self) -> bool:
        """Whether the text repeats itself; any drafter guesses it then, which says little about other texts."""
        return repeats_itself(self.text.tolist())

    def cut(self, num_tokens: int) -> "PromptRecord":
        """Return the record of the text's first `num_tokens` tokens, at least one."""
        return PromptRecord(**{each.name: _cut(getattr(self, each.name), num_tokens) for each in fields(self)})

    def drafts(self, *, with_features: bool) -> Ids:
        """Return the tokens that the draft model drafts at each position, [N, W].

        Raises `RecordError` if there was no draft model, or none that reads features.
        """
        drafts = self.feature_rollouts if with_features else self.rollouts
        if len(drafts) != len(self.text):
            what = "rollouts with exit features: its drafter takes none" if with_features else "rollouts of a draft"
            raise RecordError(f"record of {self.name!r} has no {what}")
        return drafts

    def sampled_drafts(self, draws_N: NDArray[np.float64], *, with_features: bool) -> Ids:
        """Return tokens that a sampling draft drafts at each position, [N, W].

        `draws_N` are uniform draws, one for each token of the text, that decide whether the draft has it. Raises
        `RecordError` if the text is greedy or the draft reads no features.
        """
        acceptance_NW = self.feature_draft_acceptance if with_features else self.draft_acceptance
        refused_NW = self.feature_refused_drafts if with_features else self.refused_drafts
        if len(acceptance_NW) != len(self.text):
            raise RecordError(
                f"record of {self.name!r} has no drafts that were sampled{' with features' * with_features}"
            )
        token_NW = np.minimum(
            np.add.outer(np.arange(len(self.text)), np.arange(refused_NW.shape[1])), len(self.text) - 1
        )
        drafts: Ids = np.where(draws_N[token_NW] < acceptance_NW, self.text[token_NW], refused_NW)
        return drafts

    def candidates(self, exit_layer: int | None) -> Ids:
        """Return the best ids for the next token at each position, [N, K], of an exit or, for None, of the draft."""
        return self.alternatives if exit_layer is None else self.exits[exit_layer]

    def match_lengths(self, *, with_features: bool) -> Ids:
        """Return how many tokens drafted at each position agree with the text, [N], at most up to its end."""
        return agreeing(self.text, self.drafts(with_features=with_features))

    def chain_lengths(self, chain: int) -> Ids:
        """Return how many tokens of a recorded chain agree with the text at each position, [N]."""
        return agreeing(self.text, self.chain_drafts[chain])

    def tree_lengths(self, tree: int, size: int) -> Ids:
        """Return how many tokens of a tree of `size` nodes agree with the text at each position, [N], up to its end."""
        ranks = self.tree_ranks[tree]
        lengths = np.cumprod((ranks >= 0) & (ranks < size), axis=1).sum(axis=1).astype(np.int32)
        bounded: Ids = np.minimum(lengths, np.arange(len(ranks), 0, -1, dtype=np.int32))
        return bounded


def agreeing(text_N: Ids, drafts_NW: Ids) -> Ids:
    """Return how many tokens drafted at each position agree with the text, [N], at most up to its end."""
    num_tokens, width = drafts_NW.shape
    padded = np.concatenate([text_N, np.full(width, -2, dtype=np.int32)])
    following = np.lib.stride_tricks.sliding_window_view(padded, width)[:num_tokens]
    lengths: Ids = np.cumprod(drafts_NW == following, axis=1).sum(axis=1).astype(np.int32)
    return lengths


def _are_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return bool(one == other)


def _cut(value: Any, num_tokens: int) -> Any:
    if isinstance(value, np.ndarray):
        return value[:num_tokens]
    if isinstance(value, tuple):
        return tuple(_cut(one, num_tokens) for one in value)
    return {key: _cut(one, num_tokens) for key, one in value.items()} if isinstance(value, dict) else value
