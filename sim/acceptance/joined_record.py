"""An acceptance record with all prompts' texts joined, so that one array operation serves every position.

Shape legend: T positions of all texts together, P prompts, W longest window, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from decoding.errors import RecordError
from decoding.record import AcceptanceRecord, Ids
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import NO_TOKEN, Ints


class Drafts(NamedTuple):
    """What the draft proposes from every position.

    Attributes:
        windows: the longest windows, T tuples of W.
        first: the first drafted token, [T].
        match_length: drafted tokens that agree with the text, [T].
        refused: the drafted token behind those; `NO_TOKEN` if all W agree, [T].
    """

    windows: list[tuple[int, ...]]
    first: Ints
    match_length: Ints
    refused: Ints


class JoinedRecord:
    """The arrays of a record, joined when first asked for."""

    def __init__(self, record: AcceptanceRecord) -> None:
        """Raise `RecordError` if there is no prompt, or one without text."""
        if not record.prompts or not all(len(prompt.text) for prompt in record.prompts):
            msg = f"the record of {record.target} with {record.drafter} has no prompt, or one without text"
            raise RecordError(msg)
        self.record = record
        lengths = np.array([len(prompt.text) for prompt in record.prompts])
        self.starts = np.cumsum(lengths) - lengths
        self.ends = np.repeat(self.starts + lengths, lengths)
        self.text = _joined(prompt.text for prompt in record.prompts)
        self._drafts: dict[bool, Drafts] = {}
        self._candidates: dict[int | None, Ids] = {}

    def drafts(self, *, with_features: bool) -> Drafts:
        """What the draft proposes from every position."""
        found = self._drafts.get(with_features)
        if found is None:
            tokens = _joined(prompt.drafts(with_features=with_features) for prompt in self.record.prompts)
            match_length = np.concatenate(
                [prompt.match_lengths(with_features=with_features) for prompt in self.record.prompts]
            ).astype(np.int64)
            padded = np.pad(tokens, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
            refused = padded[np.arange(len(tokens)), match_length].astype(np.int64)
            windows = [tuple(row) for row in tokens.tolist()]
            first = tokens[:, 0].astype(np.int64)
            found = self._drafts[with_features] = Drafts(windows, first, match_length, refused)
        return found

    def stream_hits(self, *, with_features: bool) -> Ints:
        """Right guesses in a row behind every drafted token from every position, [T, W]."""
        of = [p.feature_stream_hits if with_features else p.stream_hits for p in self.record.prompts]
        return _joined(of).astype(np.int64)

    def tree_ranks(self, tree: int) -> Ids:
        """Places of the text's tokens in the trees drafted from every position, [T, depth]."""
        return _joined(prompt.tree_ranks[tree] for prompt in self.record.prompts)

    def tree_lengths(self, tree: int, size: int) -> Ints:
        """Tokens that a drafted tree of `size` nodes gets accepted at every position, [T]."""
        return _joined(prompt.tree_lengths(tree, size) for prompt in self.record.prompts).astype(np.int64)

    def candidates(self, exit_layer: int | None) -> Ids:
        """Best ids behind every position by that exit, or by the draft for None, [T, K]."""
        found = self._candidates.get(exit_layer)
        if found is None:
            prompts = self.record.prompts
            of = [prompt.alternatives if exit_layer is None else prompt.exits[exit_layer] for prompt in prompts]
            width = min(ids.shape[1] for ids in of)
            found = self._candidates[exit_layer] = _joined(ids[:, :width] for ids in of)
        return found

    def lengths(self, max_new_tokens: int | None) -> list[int]:
        """New tokens of each prompt, P.

        Raises:
            RecordError: the record's texts were cut earlier than that.
        """
        most = self.record.max_new_tokens
        if max_new_tokens is not None and not 1 <= max_new_tokens <= most:
            msg = f"max_new_tokens is {max_new_tokens}; the record's texts allow 1..{most}"
            raise RecordError(msg)
        return [min(len(prompt.text), max_new_tokens or most) for prompt in self.record.prompts]

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule that asks for what was not recorded.

        Raises:
            RecordError: names what is missing and what there is.
        """
        record = self.record
        if schedule.is_tree:
            record.tree(schedule)
            return
        if schedule.num_speculative_tokens > record.max_window:
            msg = f"num_speculative_tokens is {schedule.num_speculative_tokens}; recorded are up to {record.max_window}"
            raise RecordError(msg)
        if schedule.exit_layer is not None:
            self._check_exit(schedule, schedule.exit_layer)
        if schedule.draft_streams > record.num_streams:
            msg = f"draft_streams is {schedule.draft_streams}; recorded is a draft of {record.num_streams}"
            raise RecordError(msg)
        if schedule.num_alternatives > (width := self.candidates(None).shape[1]):
            msg = f"the schedule needs {schedule.num_alternatives} of the draft's own ids per row; recorded are {width}"
            raise RecordError(msg)

    def _check_exit(self, schedule: Schedule, exit_layer: int) -> None:
        record = self.record
        if exit_layer not in record.exit_layers:
            msg = f"exit_layer {exit_layer} was not recorded; recorded are {', '.join(map(str, record.exit_layers))}"
            raise RecordError(msg)
        if schedule.num_exit_candidates > (width := self.candidates(exit_layer).shape[1]):
            msg = f"the schedule needs {schedule.num_exit_candidates} ids per row of the exit; recorded are {width}"
            raise RecordError(msg)
        if schedule.exit_features and exit_layer < (last := max(record.feature_layers, default=0)):
            msg = f"the exit after layer {exit_layer} cannot send features of layer {last}, which the draft reads"
            raise RecordError(msg)


def _joined(arrays: Iterable[Ids]) -> Ids:
    return np.concatenate(list(arrays))
