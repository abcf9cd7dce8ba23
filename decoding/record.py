"""Acceptance records: what a model pair would do at every position of its own text, for any schedule.

Greedy decoding is lossless, so all schedules of a pair produce the same text. Recording, once per prompt and at
every position of that text, what the draft would propose, what each exit would send and what the draft holds
for second best, lets any schedule be replayed without a model, round by round and token by token.

Position i means: i new tokens are committed. Arrays are numpy, ids are target ids, -1 fills unused places.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.errors import RecordError
from decoding.files import replace_file
from decoding.schedule import Method, Schedule
from decoding.tree_shape import Path as TreePath

Ids = NDArray[np.int32]
FORMAT = "mirrorsd-acceptance-record-4"


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
class PromptRecord:
    """One prompt's text and everything that could have been said about it.

    Attributes:
        name: where the prompt comes from.
        category: kind of task, or "".
        prompt_length: tokens of the prompt.
        text: the target's greedy text, N ids; ends with EOS or at `max_new_tokens`.
        rollouts: draft without exit features: for the prefix text[:i], its next `max_window` tokens, [N, W].
        feature_rollouts: the same with exit features at every committed position; empty ([0, W]) if the draft
            takes none.
        alternatives: for each prefix text[:i], the draft's best ids for the next place, [N, F]. These are the
            draft-sourced candidates of the row that follows prefix text[:i].
        feature_alternatives: with exit features; empty if the draft takes none.
        exits: for each exit layer, its best ids for the place after prefix text[:i], [N, K].
        tree_ranks: for each tree of the record the places in its order of the nodes that stand for text[i],
            text[i + 1], ..., -1 for one that no size of the tree has, [N, depth].
        margins: by how much the target's best logit exceeds its second best at each token, [N]; empty if unknown.
            Where it is near zero, other arithmetic may choose another token.
        stream_hits: of a draft with streams: how many of their guesses behind each token of `rollouts` are what the
            draft itself goes on with, in a row, [N, W]; empty ([0, W]) for a draft without.
        feature_stream_hits: likewise behind `feature_rollouts`.
    """

    name: str
    category: str
    prompt_length: int
    text: Ids
    rollouts: Ids
    feature_rollouts: Ids
    alternatives: Ids
    feature_alternatives: Ids
    exits: dict[int, Ids]
    tree_ranks: tuple[Ids, ...] = ()
    margins: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    stream_hits: Ids = field(default_factory=_nothing)
    feature_stream_hits: Ids = field(default_factory=_nothing)

    def drafts(self, *, with_features: bool) -> Ids:
        """Drafted tokens by position, [N, W].

        Raises:
            RecordError: features are asked for and were not recorded.
        """
        if not with_features:
            return self.rollouts
        if len(self.feature_rollouts) != len(self.text):
            msg = f"record of {self.name!r} has no rollouts with exit features: its drafter takes none"
            raise RecordError(msg)
        return self.feature_rollouts

    def match_lengths(self, *, with_features: bool) -> Ids:
        """How many drafted tokens agree with the text at each position, [N]; the text's end bounds them."""
        drafts = self.drafts(with_features=with_features)
        num_tokens, width = drafts.shape
        padded = np.concatenate([self.text, np.full(width, -2, dtype=np.int32)])
        following = np.lib.stride_tricks.sliding_window_view(padded, width)[:num_tokens]
        lengths: Ids = np.cumprod(drafts == following, axis=1).sum(axis=1).astype(np.int32)
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
        target, drafter, dtype: what was recorded, for messages and fingerprints.
        max_window: longest window that can be replayed.
        max_new_tokens: cut of the text.
        exit_layers: recorded exits.
        feature_layers: target layers that the draft's exit features come from; a mirror exit must lie at or
            behind the last of them.
        prompts: one entry per prompt.
        trees: drafted trees that were recorded, in the order of every prompt's `tree_ranks`.
        num_streams: the draft's own streams; 0 without.
    """

    target: str
    drafter: str
    dtype: str
    max_window: int
    max_new_tokens: int
    exit_layers: tuple[int, ...]
    prompts: tuple[PromptRecord, ...]
    feature_layers: tuple[int, ...] = ()
    trees: tuple[RecordedTree, ...] = ()
    num_streams: int = 0

    def __post_init__(self) -> None:
        """Raise `RecordError` where the arrays of a prompt do not fit its text or what the record claims."""
        for prompt in self.prompts:
            for complaint in _complaints(prompt, self):
                msg = f"record of {prompt.name!r}: {complaint}"
                raise RecordError(msg)

    def tree(self, schedule: Schedule) -> int:
        """Place of a schedule's trees among those recorded.

        Raises:
            RecordError: they were not recorded; says which were.
        """
        for place, tree in enumerate(self.trees):
            if tree.answers(schedule):
                return place
        known = "; ".join(f"{tree.method} of {tree.drafter}, {tree.depth} deep" for tree in self.trees) or "none"
        wanted = f"{schedule.method} of {schedule.drafter}, {schedule.num_speculative_tokens} deep"
        msg = f"the record holds no trees of {wanted}; trees it holds: {known}"
        raise RecordError(msg)

    def save(self, path: Path) -> None:
        """Write a `.npz` file (no pickled objects) atomically.

        Raises:
            RecordError: the file cannot be written.
        """
        arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(self._header()).encode(), dtype=np.uint8)}
        for index, prompt in enumerate(self.prompts):
            arrays |= {f"{index}.{name}": getattr(prompt, name) for name in _ARRAYS}
            arrays |= {f"{index}.exit.{layer}": ids for layer, ids in prompt.exits.items()}
            arrays |= {f"{index}.tree.{place}": ranks for place, ranks in enumerate(prompt.tree_ranks)}
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        try:
            replace_file(path, content.getvalue())
        except OSError as error:
            msg = f"{path}: cannot be written ({error})"
            raise RecordError(msg) from error

    @classmethod
    def load(cls, path: Path) -> AcceptanceRecord:
        """Read what `save` wrote.

        Raises:
            RecordError: the file is missing, damaged, or not an acceptance record.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls._from_arrays({name: arrays[name] for name in arrays.files})
        except RecordError as error:
            msg = f"{path}: {error}"
            raise RecordError(msg) from error
        except Exception as error:
            msg = f"{path}: not a readable acceptance record ({error})"
            raise RecordError(msg) from error

    def _header(self) -> dict[str, Any]:
        reach = ("max_window", "max_new_tokens", "exit_layers", "feature_layers", "num_streams")
        scalars = ("target", "drafter", "dtype", *reach)
        rows = [{"name": p.name, "category": p.category, "prompt_length": p.prompt_length} for p in self.prompts]
        shared = {name: getattr(self, name) for name in scalars} | {"trees": [asdict(tree) for tree in self.trees]}
        return {"format": FORMAT} | shared | {"prompts": rows}

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> AcceptanceRecord:
        header = json.loads(arrays["header"].tobytes())
        if header.pop("format", None) != FORMAT:
            msg = f"not an acceptance record of format {FORMAT}"
            raise RecordError(msg)
        layers = tuple(header.pop("exit_layers"))
        feature_layers = tuple(header.pop("feature_layers"))
        trees = tuple(
            RecordedTree(**row | {"paths": tuple(tuple(path) for path in row["paths"])}) for row in header.pop("trees")
        )
        prompts = tuple(
            PromptRecord(
                **row,
                **{name: arrays[f"{index}.{name}"] for name in _ARRAYS},
                exits={layer: arrays[f"{index}.exit.{layer}"] for layer in layers},
                tree_ranks=tuple(arrays[f"{index}.tree.{place}"] for place in range(len(trees))),
            )
            for index, row in enumerate(header.pop("prompts"))
        )
        return cls(**header, exit_layers=layers, feature_layers=feature_layers, trees=trees, prompts=prompts)


def _complaints(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[str]:
    """What is wrong with a prompt of a record."""
    length = len(prompt.text)
    if prompt.prompt_length < 1:
        yield f"prompt_length is {prompt.prompt_length}, not at least 1"
    if length > record.max_new_tokens:
        yield f"{length} tokens of text, more than max_new_tokens {record.max_new_tokens}"
    if missing := set(record.exit_layers) - set(prompt.exits):
        yield f"no exit after layer {', '.join(map(str, sorted(missing)))}"
    if len(prompt.tree_ranks) != len(record.trees):
        yield f"tree_ranks for {len(prompt.tree_ranks)} trees, not {len(record.trees)}"
    for tree, ranks in zip(record.trees, prompt.tree_ranks, strict=False):
        if ranks.shape != (length, tree.depth):
            yield f"tree_ranks of {tree.drafter} have shape {ranks.shape}, not {(length, tree.depth)}"
    yield from _missing_hits(prompt, record.num_streams)
    yield from _misshapen(prompt, record.max_window)


def _missing_hits(prompt: PromptRecord, num_streams: int) -> Iterator[str]:
    """Rollouts of a draft with streams whose right guesses are not known."""
    hits = {"stream_hits": (prompt.rollouts, prompt.stream_hits)}
    hits["feature_stream_hits"] = prompt.feature_rollouts, prompt.feature_stream_hits
    for name, (rollouts, found) in hits.items():
        if num_streams and len(rollouts) and not len(found):
            yield f"no {name} for {num_streams} streams"
        if (found < 0).any():
            yield f"{name} hold {found.min()}, which is no number of guesses"


def _misshapen(prompt: PromptRecord, max_window: int) -> Iterator[str]:
    """Which arrays do not have a row for every token, or not as many drafted tokens as the record claims."""
    may_be_empty = {name: getattr(prompt, name) for name in _OPTIONAL}
    arrays = {"rollouts": prompt.rollouts, "alternatives": prompt.alternatives}
    arrays |= {name: ids for name, ids in may_be_empty.items() if len(ids)}
    arrays |= {f"exits[{layer}]": ids for layer, ids in prompt.exits.items()}
    for name, ids in arrays.items():
        if ids.ndim != 2 or len(ids) != len(prompt.text):
            yield f"{name} has shape {ids.shape}, not one row for each of {len(prompt.text)} tokens of text"
        elif name.endswith(("rollouts", "stream_hits")) and ids.shape[1] < max_window:
            yield f"{name} has {ids.shape[1]} drafted tokens for max_window {max_window}"


_OPTIONAL = ("feature_rollouts", "feature_alternatives", "stream_hits", "feature_stream_hits")
_ARRAYS = ("text", "rollouts", "alternatives", "margins", *_OPTIONAL)
