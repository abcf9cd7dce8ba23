"""Trees that the streams of a decoder draft: one pass of a row's streams through the top layers drafts a whole tree.

Every stream's best ids are the candidates of one level, whatever tokens come before them (`runtime.drafters.trees`).
Shapes: legend of `runtime.drafters.streams.model`, plus N places of a text, C candidates, V kept ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from decoding.messages import Window
from decoding.tree_shape import Path as TreePath
from runtime.drafters.language_model.draft_passes import StreamConfig
from runtime.drafters.streams.model import Borrowed, Keys, StreamModel, run_along, stream_mask
from runtime.drafters.trees import MOST_RANKS, Ranks, candidates_per_level, ranks_by_level, window_of
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache
from runtime.models.vocabulary import OutputRows, ranked_ids
from runtime.storage.head_folder import TreeFolderConfig, load_head
from runtime.storage.weight_folder import Count, Width, save_trained

_ROWS_PER_PIECE = 64
"""Rows of a text whose streams are computed at once: their masks grow with the square."""


class StreamTree:
    """The streams of a decoder, the kept rows of its head, and their tree of best ids at any temperature."""

    def __init__(self, model: StreamModel, decoder: Decoder, kept_ids: Tensor, paths: Sequence[TreePath]) -> None:
        """Args: the streams; their decoder; target ids they may propose; nodes of the tree in their order."""
        self.model, self.paths = model, tuple(paths)
        self.num_streams, self.start_layer = model.config.num_streams, model.config.start_layer
        self._decoder, self.dtype = decoder, decoder.lm_head.weight.dtype
        head_VD = decoder.lm_head.weight.detach()
        self.output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)

    @torch.inference_mode()
    def draft(self, x_1D: Tensor, cache: KVCache, paths: Sequence[TreePath]) -> Window:
        """Return the tree after the row last cached, whose state after `start_layer` is `x_1D`.

        The cache needs as many slots after its cursor as there are streams; the text in it stays what it is.
        """
        hidden_BRJD = self.model(x_1D[None], positions=torch.tensor([cache.cursor - 1]), cache=cache)
        counts = candidates_per_level(paths)
        best_JC = self._best(hidden_BRJD[0, 0, : len(counts)], max(counts)).tolist()
        return window_of(paths, best_JC)

    @torch.inference_mode()
    def level_ranks(self, ids: Sequence[int], *, start: int, x_TD: Tensor) -> Ranks:
        """Return every stream's ranks along a sequence (`ranks_by_level`), [N, J].

        `x_TD` are its rows' states after `start_layer`; none is needed of the last two.
        """
        self.output.add_prompt_tokens(ids[:start])

        def candidates_from(first: int) -> tuple[Tensor, ...]:
            _, keys = run_along(self._decoder, x_TD[None], self.start_layer)
            best, stop = [], len(ids) - 2
            for begin in range(first - 2, stop, _ROWS_PER_PIECE):
                positions_R = torch.arange(begin, min(begin + _ROWS_PER_PIECE, stop))
                best.append(self._best(self._along(x_TD, positions_R, keys), MOST_RANKS))
            return torch.cat(best).unbind(1)

        return ranks_by_level(ids, start, self.num_streams, candidates_from)

    def _along(self, x_TD: Tensor, positions_R: Tensor, keys: Keys) -> Tensor:
        visible_RS = x_TD.new_zeros(len(positions_R), len(x_TD))
        visible_RS.masked_fill_(torch.arange(len(x_TD)) > positions_R[:, None], -math.inf)
        mask = stream_mask(visible_RS, self.num_streams)
        return self.model(x_TD[None, positions_R], positions=positions_R, cache=Borrowed(keys), mask=mask)[0]  # type: ignore[no-any-return]

    def _best(self, hidden_RD: Tensor, count: int) -> Tensor:
        logits = self.output.logits(hidden_RD).flatten(0, -2)
        return self.output.ids[ranked_ids(logits, count)].view(*hidden_RD.shape[:-1], count)  # type: ignore[no-any-return]


class StreamFolderConfig(TreeFolderConfig):
    """`config.json` of streams."""

    depth_field = "num_streams"

    speculators_model_type: Literal["mirrorsd_streams"] = "mirrorsd_streams"
    num_streams: Count
    start_layer: int
    rank: Width


def save_streams(
    model: StreamModel,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    kept_ids: Tensor,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write streams, the target ids that they may propose, and their tree (`FolderConfig.of`, `save_trained`)."""
    config = StreamFolderConfig.of(
        target.config, target_name, metadata, **asdict(model.config), draft_vocab_size=len(kept_ids), paths=tuple(paths)
    )
    save_trained(folder, config, model.trained, embedding_VD=target.embedding.weight, kept_ids=kept_ids)


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """Return the streams of a folder for the target's own layers, in their dtype, and the tree."""

    def build(config: StreamFolderConfig) -> StreamModel:
        return StreamModel(target, config.sizes(StreamConfig))

    dtype = target.embedding.weight.dtype
    config, model, kept_ids = load_head(folder, StreamFolderConfig, target, build, dtype=dtype)
    model.to(kept_ids.device)
    return StreamTree(model, target, kept_ids, config.paths)
