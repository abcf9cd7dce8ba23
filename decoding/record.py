"""Acceptance records: what a model pair would do at every position of its own text, for any schedule.

Greedy decoding is lossless, so all schedules of a pair produce the same text. Recording, once per prompt and at
every position of that text, what the draft would propose, what each exit would send and what the draft holds
for second best, lets any schedule be replayed without a model, round by round and token by token.

Position i means: i new tokens are committed. Arrays are numpy, ids are target ids, -1 fills unused places.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from decoding.errors import RecordError, listed, mistake
from decoding.files import replace_file
from decoding.record_checks import (
    FORMAT,
    MAX_BYTES,
    OPTIONAL_ARRAYS,
    RecordHeader,
    checked_array,
    complaints,
    missing_for,
)
from decoding.schedule import Method, Schedule
from decoding.tree_shape import Path as TreePath

Ids = NDArray[np.int32]


def _nothing() -> Ids:
    return np.zeros((0, 0), dtype=np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTree:
    """Trees of one drafter that a record holds the places of, for every `tree_size`.

    Attributes:
        method: the tree method that drafts so.
        drafter: name of its drafter.
        depth: the schedule's `num_speculative_tokens`.
        top_k: the schedule's `tree_top_k`.
        paths: nodes of a static tree in their order; empty for a dynamic one.
    """

    method: Method
    drafter: str
    depth: int
    top_k: int = 0
    paths: tuple[TreePath, ...] = ()

    def answers(self, schedule: Schedule) -> bool:
        """Whether the schedule's trees are these."""
        asked = (schedule.method, schedule.drafter, schedule.num_speculative_tokens, schedule.tree_top_k)
        return asked == (self.method, self.drafter, self.depth, self.top_k)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedChain:
    """Chains of a drafter that is not the pair's own draft model, such as prompt lookup.

    Attributes:
        method: the method that drafts so.
        drafter: name of its drafter.
    """

    method: Method
    drafter: str

    def answers(self, schedule: Schedule) -> bool:
        """Whether the schedule's windows are these."""
        return (schedule.method, schedule.drafter) == (self.method, self.drafter)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRecord:
    """One prompt's text and everything that could have been said about it.

    Attributes:
        name: where the prompt comes from.
        category: kind of task, or "".
        prompt_length: tokens of the prompt.
        text: the target's greedy text, N ids; ends with EOS or at `max_new_tokens`.
        rollouts: draft without exit features: for the prefix text[:i], its next `max_window` tokens, [N, W]; empty
            if the pair has no draft model.
        feature_rollouts: the same with exit features at every committed position; empty ([0, W]) if the draft
            takes none.
        alternatives: for each prefix text[:i], the draft's best ids for the next place, [N, F]. These are the
            draft-sourced candidates of the row that follows prefix text[:i].
        exits: for each exit layer, its best ids for the place after prefix text[:i], [N, K].
        tree_ranks: for each tree of the record the places in its order of the nodes that hold text[i],
            text[i + 1], ..., -1 for one that no size of the tree has, [N, depth].
        chain_drafts: for each chain of the record what is drafted after the prefix text[:i], [N, W]; -1 after the
            end of a shorter window.
        margins: by how much the target's best logit exceeds its second best at each token, [N]; empty if unknown.
            Where it is near zero, other arithmetic may choose another token.
        stream_hits: of a draft with streams: how many of their guesses after each token of `rollouts` are what the
            draft itself goes on with, in a row, [N, W]; empty ([0, W]) for a draft without.
        feature_stream_hits: likewise after the tokens of `feature_rollouts`.
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

    def drafts(self, *, with_features: bool) -> Ids:
        """Tokens that the draft model drafts, by position, [N, W].

        Raises:
            RecordError: they were not recorded: the pair has no draft model, or it takes no features.
        """
        drafts = self.feature_rollouts if with_features else self.rollouts
        if len(drafts) != len(self.text):
            what = "rollouts with exit features: its drafter takes none" if with_features else "rollouts of a draft"
            msg = f"record of {self.name!r} has no {what}"
            raise RecordError(msg)
        return drafts

    def candidates(self, exit_layer: int | None) -> Ids:
        """Best ids for the place after every prefix text[:i]: of an exit, or of the draft for None, [N, K]."""
        return self.alternatives if exit_layer is None else self.exits[exit_layer]

    def match_lengths(self, *, with_features: bool) -> Ids:
        """How many drafted tokens agree with the text at each position, [N]; the text's end bounds them."""
        return self._agreeing(self.drafts(with_features=with_features))

    def chain_lengths(self, chain: int) -> Ids:
        """The same for a chain of the record, by its place there, [N]."""
        return self._agreeing(self.chain_drafts[chain])

    def _agreeing(self, drafts_NW: Ids) -> Ids:
        num_tokens, width = drafts_NW.shape
        padded = np.concatenate([self.text, np.full(width, -2, dtype=np.int32)])
        following = np.lib.stride_tricks.sliding_window_view(padded, width)[:num_tokens]
        lengths: Ids = np.cumprod(drafts_NW == following, axis=1).sum(axis=1).astype(np.int32)
        return lengths

    def tree_lengths(self, tree: int, size: int) -> Ids:
        """How many tokens a drafted tree of `size` nodes gets accepted at each position, [N].

        Args:
            tree: place among the record's trees.
            size: the schedule's `tree_size`.
        """
        ranks = self.tree_ranks[tree]
        lengths: Ids = np.cumprod((ranks >= 0) & (ranks < size), axis=1).sum(axis=1).astype(np.int32)
        return lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceRecord:
    """Records of several prompts by one model pair at temperature 0.

    Attributes:
        target, drafter, dtype: what was recorded, for messages and fingerprints; no drafter where the pair has no draft
            model.
        max_window: longest window that can be replayed.
        max_new_tokens: cut of the text.
        exit_layers: recorded exits.
        feature_layers: target layers that the draft's exit features come from; a mirror exit must not lie before
            the last of them.
        prompts: one entry per prompt.
        trees: drafted trees that were recorded, in the order of every prompt's `tree_ranks`.
        chains: drafted chains of other drafters, in the order of every prompt's `chain_drafts`.
        num_streams: the draft's own streams; 0 without.
    """

    target: str
    drafter: str | None
    dtype: str
    max_window: int
    max_new_tokens: int
    exit_layers: tuple[int, ...]
    prompts: tuple[PromptRecord, ...]
    feature_layers: tuple[int, ...] = ()
    trees: tuple[RecordedTree, ...] = ()
    chains: tuple[RecordedChain, ...] = ()
    num_streams: int = 0

    def __post_init__(self) -> None:
        """Raise `RecordError` where the arrays of a prompt do not fit its text or what the record claims."""
        for prompt in self.prompts:
            for complaint in complaints(prompt, self):
                msg = f"record of {prompt.name!r}: {complaint}"
                raise RecordError(msg)

    def __repr__(self) -> str:
        """In a line: the arrays of all prompts would fill pages."""
        return f"<AcceptanceRecord of {self.target} with {self.drafter}, {self.dtype}: {len(self.prompts)} prompts>"

    def trees_of(self, method: Method) -> list[RecordedTree]:
        """The trees that a method drafts."""
        return [tree for tree in self.trees if tree.method == method]

    def chains_of(self, method: Method) -> list[RecordedChain]:
        """The chains that a method drafts."""
        return [chain for chain in self.chains if chain.method == method]

    def tree(self, schedule: Schedule) -> int:
        """Place of a schedule's trees among those recorded; errors as in `check`."""
        return self._place(schedule, self.trees)

    def chain(self, schedule: Schedule) -> int:
        """Place of a schedule's chains among those recorded; errors as in `check`."""
        return self._place(schedule, self.chains)

    def _place(self, schedule: Schedule, recorded: Sequence[RecordedTree | RecordedChain]) -> int:
        for place, one in enumerate(recorded):
            if one.answers(schedule):
                return place
        raise RecordError(self._refusal(schedule))

    def _refusal(self, schedule: Schedule) -> str:
        asked = schedule.model_dump(
            mode="json", exclude_defaults=True, exclude={"target_lane", "draft_lane", "drafter"}
        )
        return f"{', '.join(f'{name} {value}' for name, value in asked.items())}: {self.missing(schedule)}"

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule that asks for what was not recorded.

        Raises:
            RecordError: names what is missing and what there is.
        """
        if self.missing(schedule):
            raise RecordError(self._refusal(schedule))

    def missing(self, schedule: Schedule) -> str | None:
        """What a schedule asks for that was not recorded, and what was; None if nothing is missing."""
        return next(missing_for(schedule, self), None)

    @property
    def contexts(self) -> range:
        """Rows in the target's cache at the verifications of its prompts, from the first to the last possible."""
        lengths = [(prompt.prompt_length, len(prompt.text)) for prompt in self.prompts]
        return range(min(before for before, _ in lengths) - 1, max(before + text for before, text in lengths) - 1)

    @property
    def has_features(self) -> bool:
        """Whether rollouts of a draft with exit features were recorded."""
        return all(len(prompt.feature_rollouts) == len(prompt.text) for prompt in self.prompts)

    def num_candidates(self, exit_layer: int | None) -> int:
        """Ids per position of an exit, or of the draft for None: the fewest of all prompts."""
        return min((prompt.candidates(exit_layer).shape[1] for prompt in self.prompts), default=0)

    def save(self, path: str | Path) -> None:
        """Write a `.npz` file (no pickled objects) atomically.

        Raises:
            RecordError: the file cannot be written.
        """
        arrays: dict[str, Any] = {"header": np.frombuffer(self._header(), dtype=np.uint8)}
        for index, prompt in enumerate(self.prompts):
            arrays |= {f"{index}.{name}": getattr(prompt, name) for name in _ARRAYS}
            arrays |= {f"{index}.exit.{layer}": ids for layer, ids in prompt.exits.items()}
            arrays |= {f"{index}.tree.{place}": ranks for place, ranks in enumerate(prompt.tree_ranks)}
            arrays |= {f"{index}.chain.{place}": drafts for place, drafts in enumerate(prompt.chain_drafts)}
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        try:
            replace_file(Path(path), content.getvalue())
        except OSError as error:
            msg = f"{path}: cannot be written ({error})"
            raise RecordError(msg) from error

    @classmethod
    def load(cls, path: str | Path) -> AcceptanceRecord:
        """Read what `save` wrote.

        Raises:
            RecordError: the file is missing, damaged, or not an acceptance record.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if (num_bytes := sum(entry.file_size for entry in arrays.zip.infolist())) > MAX_BYTES:
                    raise RecordError(f"its arrays have {num_bytes:,} bytes; at most {MAX_BYTES:,} are read")
                return cls._from_arrays({name: arrays[name] for name in arrays.files})
        except RecordError as error:
            msg = f"{path}: {error}"
            raise RecordError(msg) from error
        except ValidationError as error:
            mistakes = listed([mistake(one) for one in error.errors(include_url=False)])
            raise RecordError(f"{path}: not an acceptance record of format {FORMAT}: {mistakes}") from error
        except Exception as error:
            msg = f"{path}: not a readable acceptance record ({error})"
            raise RecordError(msg) from error

    def _header(self) -> bytes:
        """All but the arrays."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        prompts = [{name: getattr(prompt, name) for name in _SCALARS} for prompt in self.prompts]
        return json.dumps({"format": FORMAT} | own | {"prompts": prompts}, default=asdict).encode()

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> AcceptanceRecord:
        header = RecordHeader.model_validate_json(arrays.pop("header").tobytes())
        arrays = {name: checked_array(array, name) for name, array in arrays.items()}
        prompts = tuple(
            PromptRecord(
                **row.model_dump(),
                **{name: arrays[f"{index}.{name}"] for name in _ARRAYS},
                exits={layer: arrays[f"{index}.exit.{layer}"] for layer in header.exit_layers},
                tree_ranks=tuple(arrays[f"{index}.tree.{place}"] for place in range(len(header.trees))),
                chain_drafts=tuple(arrays[f"{index}.chain.{place}"] for place in range(len(header.chains))),
            )
            for index, row in enumerate(header.prompts)
        )
        trees = tuple(RecordedTree(**row.model_dump()) for row in header.trees)
        chains = tuple(RecordedChain(**row.model_dump()) for row in header.chains)
        own = header.model_dump(exclude={"format", "prompts", "trees", "chains"})
        return cls(**own, trees=trees, chains=chains, prompts=prompts)


_SCALARS = ("name", "category", "prompt_length")
_ARRAYS = ("text", "rollouts", "alternatives", "margins", *OPTIONAL_ARRAYS)


def round_starts(num_accepted: Sequence[int], length: int) -> list[int]:
    """Positions at which the rounds of a text start, if the one from position i has num_accepted[i] tokens accepted.

    The last round is the one that reaches `length`.
    """
    starts, position = [], 0
    while position < length:
        starts.append(position)
        position += num_accepted[position] + 1
    return starts
