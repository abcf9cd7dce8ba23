"""A schedule: the complete answer to "how shall this model pair decode on these lanes".

Search writes it, both worlds execute it. Nothing in it is a measurement.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from decoding.method_traits import MethodTraits, Verification
from decoding.methods import METHODS
from decoding.validation import Many
from decoding.yaml_file import UserModel, load_yaml, save_yaml

MAX_WINDOW = 16
MAX_TREE = 64


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; methods: {', '.join(METHODS)}")
    return name


Method = Annotated[str, AfterValidator(_known_method)]
"""A name among `decoding.methods.METHODS`."""
RootSource = Literal["exit", "draft", "hybrid"]


class Schedule(UserModel):
    """How one model pair decodes.

    Attributes:
        method: name of the generator in `decoding.methods`.
        draft_lane: equal to `target_lane` in a *pooled* placement, another lane in a *split* one. None if the target
            drafts for itself (`speculative_streaming`) or nothing drafts.
        num_speculative_tokens: drafted tokens per window; for a tree, the length of its longest path.
        tree_size: all drafted tokens of a tree; 0 for methods that draft chains.
        tree_top_k: nodes that a dynamic tree (`eagle2`, `eagle3`) expands on every level, and children of each.
        draft_streams: tokens that a draft model with streams proposes per step, beyond its next token.
        root_source: which tokens the branches of `mirror` start with: candidates of the target's early `exit`, the
            `draft` model's second-best and further tokens, or both (`hybrid`).
        exit_layer: number of target layers before the early exit (`exit` and `hybrid`).
        exit_top_k, draft_top_k: roots per row from the exit, and from the draft model's distribution.
        roots_per_row: number of roots for each of the rows 0..num_speculative_tokens, in place of the same number for
            all rows; rows without an entry get none. Not for `hybrid`.
        exit_features: whether the target's hidden states condition the draft (`speculative`: after each
            verification; `mirror`: with the exit message, root source `exit` only). Draft heads always read them.
        verification: rule at temperature > 0, one of the method's rules; at temperature 0 all rules are greedy.
        drafter: name or folder of the drafter; None for `autoregressive`.
    """

    method: Method
    target_lane: str
    draft_lane: str | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_WINDOW)] = 0
    tree_size: Annotated[int, Field(ge=0, le=MAX_TREE)] = 0
    tree_top_k: Annotated[int, Field(ge=0, le=MAX_TREE)] = 0
    draft_streams: Annotated[int, Field(ge=0, le=8)] = 0
    root_source: RootSource | None = None
    exit_layer: Annotated[int, Field(ge=1, le=4096)] | None = None
    exit_top_k: Annotated[int, Field(ge=0, le=64)] = 0
    draft_top_k: Annotated[int, Field(ge=0, le=64)] = 0
    roots_per_row: Many[Annotated[int, Field(ge=0, le=64)]] | None = None
    exit_features: bool = False
    verification: Verification = "match"
    drafter: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        complaints = (
            self._lane_complaints(),
            self._tree_complaints(),
            self._exit_complaints(),
            self._root_complaints(),
        )
        for complaint in chain.from_iterable(complaints):
            raise ValueError(complaint)
        return self

    def _lane_complaints(self) -> Iterator[str]:
        traits, method, length = self.traits, self.method, self.num_speculative_tokens
        has_window = traits.window != "none"
        if has_window != (length > 0):
            yield f"num_speculative_tokens is {length}: {method} takes {'at least 1' if has_window else '0'}"
        if not traits.has_draft_lane and self.draft_lane is not None:
            yield f"draft_lane is {self.draft_lane}: {method} has none"
        if traits.has_draft_lane and self.draft_lane is None:
            yield f"{method} needs a draft_lane"
        if traits.overlaps and self.is_pooled:
            yield f"{method} needs two lanes: target_lane and draft_lane are both {self.target_lane}"
        if self.draft_streams and not traits.has_draft_model:
            yield f"draft_streams belong to {_names(lambda traits: traits.has_draft_model)}"
        if self.verification not in traits.rules:
            yield f"verification is {self.verification}: {method} takes {', '.join(traits.rules)}"

    def _tree_complaints(self) -> Iterator[str]:
        size, depth, top_k = self.tree_size, self.num_speculative_tokens, self.tree_top_k
        if not self.is_tree:
            if size or top_k:
                yield f"tree_size and tree_top_k belong to {_names(lambda traits: traits.is_tree)}"
        elif size < depth:
            yield f"tree_size is {size}: a tree of depth {depth} (num_speculative_tokens) has more nodes"
        elif self.traits.has_dynamic_trees and not top_k:
            yield f"{self.method} needs tree_top_k > 0"
        elif top_k and not self.traits.has_dynamic_trees:
            yield f"tree_top_k belongs to {_names(lambda traits: traits.has_dynamic_trees)}"

    def _exit_complaints(self) -> Iterator[str]:
        traits, source = self.traits, self.root_source
        if traits.overlaps != (source is not None):
            methods = _names(lambda traits: traits.overlaps)
            yield f"root_source is {source}: {methods} needs exit, draft or hybrid, other methods none"
        if self.uses_exit != (self.exit_layer is not None):
            yield f"exit_layer is {self.exit_layer}: root sources exit and hybrid need one, everything else has none"
        if self.exit_features and source != "exit" and (traits.overlaps or not traits.has_draft_model):
            yield "exit_features are an option of speculative and of mirror's root_source exit"

    def _root_complaints(self) -> Iterator[str]:
        from_draft, uneven = self.root_source in ("draft", "hybrid"), self.roots_per_row
        if self.exit_top_k and not self.uses_exit:
            yield "exit_top_k belongs to root sources exit and hybrid"
        if self.draft_top_k and not from_draft:
            yield "draft_top_k belongs to root sources draft and hybrid"
        if uneven is None:
            if (self.uses_exit and not self.exit_top_k) or (from_draft and not self.draft_top_k):
                missing = "draft_top_k" if not self.uses_exit or self.exit_top_k else "exit_top_k"
                yield f"root_source {self.root_source} needs {missing} > 0"
        elif self.root_source not in ("exit", "draft"):
            yield "roots_per_row belongs to root sources exit and draft"
        elif not 0 < len(uneven) <= self.num_rows:
            yield f"roots_per_row has {len(uneven)} entries for {self.num_rows} rows"
        elif not sum(uneven):
            yield "roots_per_row allows no root at all"
        elif self.exit_top_k or self.draft_top_k:
            yield "roots_per_row replaces exit_top_k and draft_top_k"

    @property
    def traits(self) -> MethodTraits:
        """The traits of the schedule's method."""
        return METHODS[self.method]

    @property
    def is_pooled(self) -> bool:
        """Whether one lane runs both models."""
        return self.draft_lane == self.target_lane

    @property
    def is_tree(self) -> bool:
        """Whether windows are trees."""
        return self.traits.is_tree

    @property
    def reads_features(self) -> bool:
        """Whether the draft reads the target's hidden states."""
        return self.exit_features or self.traits.reads_states

    @property
    def uses_exit(self) -> bool:
        """Whether the target takes an early exit."""
        return self.root_source in ("exit", "hybrid")

    @property
    def num_rows(self) -> int:
        """Rows of the verification of a full window: its tokens and the last committed token."""
        return (self.tree_size or self.num_speculative_tokens) + 1

    @property
    def branch_guesses(self) -> int:
        """Tokens that streams guess for a branch in each of its steps after the first; the window limits them."""
        return max(0, min(self.draft_streams, self.num_speculative_tokens - 2)) if self.traits.overlaps else 0

    @property
    def fewest_draft_steps(self) -> int:
        """Draft steps for a window if all tokens of the draft's streams are right; one per token without streams."""
        return 1 + ceil((self.num_speculative_tokens - 1) / (1 + self.draft_streams))

    @property
    def exit_roots_per_row(self) -> tuple[int, ...]:
        """Largest number of exit-sourced roots, for each row."""
        return self._budget(self.exit_top_k if self.uses_exit else 0, applies=self.root_source == "exit")

    @property
    def draft_roots_per_row(self) -> tuple[int, ...]:
        """Largest number of draft-sourced roots, for each row."""
        return self._budget(self.draft_top_k, applies=self.root_source == "draft")

    @property
    def num_exit_candidates(self) -> int:
        """Ids per row that the exit sends: one more than the most roots of a row, as the drafted token is skipped."""
        return max(self.exit_roots_per_row) + 1 if self.uses_exit else 0

    @property
    def num_alternatives(self) -> int:
        """Ids per row that the draft keeps for draft-sourced roots, its drafted token included."""
        most_roots = max(self.draft_roots_per_row)
        return most_roots + 1 if most_roots else 0

    def _budget(self, uniform: int, *, applies: bool) -> tuple[int, ...]:
        if applies and self.roots_per_row is not None:
            return self.roots_per_row + (0,) * (self.num_rows - len(self.roots_per_row))
        return (uniform,) * self.num_rows


def _names(has: Callable[[MethodTraits], bool]) -> str:
    return ", ".join(traits.name for traits in METHODS.values() if has(traits))


def load_schedule(path: str | Path) -> Schedule:
    """Return the schedule in a YAML file; raise `ConfigError`, with line and value, if it is missing or wrong."""
    return load_yaml(path, Schedule)


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as YAML, atomically and without fields that have their default value."""
    save_yaml(schedule.model_dump(mode="json", exclude_defaults=True), path)
