"""Speculative streams (arXiv 2402.11131): extra rows in a decoder's top layers that guess the tokens after the next.

Stream j of row t starts as that row's hidden state after layer `start_layer` plus a trained embedding of j. It sees the
keys that row t sees and those of streams 1..j of row t, and has the position t + j. Low-rank changes of the matrices
(LoRA) apply to stream rows only, so the decoder's output does not change.

A target with streams drafts for itself. In the paper every row of a verification has streams; here only the last
accepted row has, after the verdict: the tree and the text are the same, for a few rows rather than a few per node.
Shapes: legend of `runtime.models.decoder`; R rows that have streams, J streams of each, N positions of a text, C
candidates, V kept ids.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from decoding.errors import ModelError
from decoding.messages import Verdict, Window
from decoding.schedule import Method
from decoding.tree_shape import MOST_RANKS, Ranks, cut
from decoding.tree_shape import Path as TreePath
from runtime.arrays import inference
from runtime.backends.eager import EagerBackend
from runtime.drafters.head_drafter import TreeFolderConfig, read_head
from runtime.drafters.language_model.folder import StreamConfig
from runtime.drafters.trees import candidates_per_level, ranks_by_level, window_of
from runtime.models.decoder import Decoder, Layer, causal_mask, rms_norm
from runtime.models.kv_cache import KVCache
from runtime.models.row_invariance import LayerKeys, Linear, WithinCall
from runtime.models.vocabulary import OutputRows, ranked_ids
from runtime.target.early_exits import EarlyExit, ExitHeads
from runtime.target.target_model import TargetModel

_MATRICES = ("qkv", "out", "gate_up", "down")
_NORMS = ("input_norm", "mlp_norm", "q_norm", "k_norm")

Keys = Callable[[int], tuple[Tensor, Tensor]]
"""From a layer's index to the keys and values of the decoder's rows, [B, K, S, H] each."""


class LowRank(nn.Module):
    """A frozen linear layer plus a trained low-rank change, which starts at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.narrow = Linear(base.in_features, rank, bias=False)
        self.widen = Linear(rank, base.out_features, bias=False)
        with torch.no_grad():
            self.widen.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map rows [..., in] to rows [..., out]."""
        return self.base(x) + self.widen(self.narrow(x))  # type: ignore[no-any-return]


class StreamModel(nn.Module):
    """The streams of a decoder, whose weights stay frozen; raises `ModelError` for a wrong `start_layer`."""

    def __init__(self, decoder: Decoder, config: StreamConfig) -> None:
        super().__init__()
        shape = decoder.config
        if not 1 <= config.start_layer < shape.num_layers:
            raise ModelError(f"start_layer {config.start_layer} is outside 1..{shape.num_layers - 1}")
        self.config, self._shape = config, shape
        self.embedding = nn.Parameter(torch.zeros(config.num_streams, shape.hidden_size))
        # hidden states are large, but training moves a weight by little more than the learning rate per step
        self._scale = math.sqrt(shape.hidden_size)
        above = range(config.start_layer, shape.num_layers)
        self.layers = nn.ModuleList(_changed(cast("Layer", decoder.layers[index]), config.rank) for index in above)
        self.final_norm, self.rotary = decoder.final_norm, decoder.rotary

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters, by name."""
        endings = ("embedding", ".narrow.weight", ".widen.weight")
        return {name: weight for name, weight in self.named_parameters() if name.endswith(endings)}

    def forward(
        self,
        x_BRD: Tensor,
        *,
        positions: Any,
        cache: LayerKeys,
        mask: Tensor | None = None,
        num_streams: int | None = None,
    ) -> Tensor:
        """Return normalised hidden states of the first streams (None: all), [B, R, J, D], for the decoder's head.

        `x_BRD` are the rows' states after `start_layer`, and `positions` [R] or [B, R] their positions. `cache` has the
        keys of the decoder's rows: a text, for the streams of a single row, which use slots from its cursor on, or a
        `Borrowed`. `mask` is that of `stream_mask`, [R * J, S + R * J] or with leading [B, 1]; for None see
        `LayerKeys.sight`.
        """
        num_streams, positions = num_streams or self.config.num_streams, torch.as_tensor(positions)
        embedding_JD = (self.embedding[:num_streams] * self._scale).to(x_BRD.dtype)
        x_BTD = (x_BRD.unsqueeze(-2) + embedding_JD).flatten(-3, -2)
        ahead = torch.arange(1, num_streams + 1, device=positions.device)
        # guesses beyond the last position cannot be committed, so their position does not matter
        last = len(self.rotary.cos_PH) - 1
        rotary = self.rotary((positions.unsqueeze(-1) + ahead).clamp(max=last).flatten(-2), x_BTD.dtype)
        sight = cache.sight(mask, x_BTD.shape[1], self._shape.num_queries_per_kv)
        for index, layer in enumerate(self.layers, self.config.start_layer):
            x_BTD = layer(x_BTD, rotary, sight, cache, index)
        x_BTD = rms_norm(x_BTD, self.final_norm, self._shape.norm_eps)
        return x_BTD.view(*x_BRD.shape[:-1], num_streams, -1)


def stream_mask(visible_RS: Tensor, num_streams: int) -> Tensor:
    """Return the additive mask of streams [.., R * J, S + R * J] from that of their rows [.., R, S]."""
    stream_T = torch.arange(visible_RS.shape[-2] * num_streams, device=visible_RS.device)
    row_T = stream_T // num_streams
    is_hidden_TT = (row_T != row_T[:, None]) | (stream_T > stream_T[:, None])
    among_TT = visible_RS.new_zeros(is_hidden_TT.shape).masked_fill_(is_hidden_TT, -math.inf)
    among_streams = among_TT.expand(*visible_RS.shape[:-2], -1, -1)
    return torch.cat([visible_RS.repeat_interleave(num_streams, dim=-2), among_streams], dim=-1)


def run_along(decoder: Decoder, x_BTD: Tensor, start: int) -> tuple[Tensor, Keys]:
    """Run the layers above `start` over whole texts; return the last hidden states [B, T, D] and the layers' keys."""
    recorder = _Recorder()
    width = x_BTD.shape[1]
    mask = causal_mask(width, x_BTD.dtype).to(x_BTD.device)
    positions = torch.arange(width, device=x_BTD.device)
    x_BTD = decoder.run_layers(x_BTD, start, decoder.config.num_layers, positions=positions, mask=mask, cache=recorder)
    return x_BTD, recorder.by_layer.__getitem__


class Borrowed(LayerKeys):
    """Keys for one call of stream rows: those of the decoder's rows, and then those of the call."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decoder's rows followed by these."""
        keys, values = self._keys(layer)
        return torch.cat([keys, k_BKTH], dim=2), torch.cat([values, v_BKTH], dim=2)


class _Recorder(WithinCall):
    """No cache, but records the keys and values of a call."""

    def __init__(self) -> None:
        self.by_layer: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        self.by_layer[layer] = k_BKTH, v_BKTH
        return k_BKTH, v_BKTH


def _changed(base: Layer, rank: int) -> Layer:
    """Return a layer that shares the norms and matrices of `base`, with low-rank changes of the matrices."""
    with torch.device("meta"):
        layer = Layer(base.config)
    for name in _NORMS:
        setattr(layer, name, getattr(base, name))
    for name in _MATRICES:
        setattr(layer, name, LowRank(getattr(base, name), rank))
    return layer


_ROWS_PER_PIECE = 64
"""Rows of a text whose streams are computed at once; the size of their mask is quadratic in it."""


class StreamTree:
    """The streams of a decoder, the kept rows of its head, and their static tree of best ids at any temperature."""

    methods: tuple[Method, ...] = ("speculative_streaming",)
    raw_features = True
    """See `WindowDrafter`."""

    def __init__(self, model: StreamModel, decoder: Decoder, kept_ids: Tensor, paths: Sequence[TreePath]) -> None:
        self.model, self.paths = model, tuple(paths)
        self.num_streams, self.start_layer = model.config.num_streams, model.config.start_layer
        self.feature_layers = (self.start_layer,)
        self._decoder, self.dtype = decoder, decoder.lm_head.weight.dtype
        head_VD = decoder.lm_head.weight.detach()
        self.output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)

    @torch.inference_mode()
    def draft(self, x_1D: Tensor, cache: KVCache, paths: Sequence[TreePath]) -> Window:
        """Return the tree after the last cached row, whose hidden state after `start_layer` is `x_1D`.

        The cache needs a slot for each stream after its cursor; the text in it is not changed.
        """
        hidden_BRJD = self.model(x_1D[None], positions=torch.tensor([cache.cursor - 1]), cache=cache)
        counts = candidates_per_level(paths)
        best_JC = self._best(hidden_BRJD[0, 0, : len(counts)], max(counts)).tolist()
        return window_of(paths, best_JC)

    @torch.inference_mode()
    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Return `ranks_by_level` of the streams along a text, [N, J]; the last two positions need no features."""
        self.output.add_prompt_tokens(ids[:start])

        def candidates_from(first: int) -> tuple[Tensor, ...]:
            _, keys = run_along(self._decoder, features_TE[None], self.start_layer)
            best, stop = [], len(ids) - 2
            for begin in range(first - 2, stop, _ROWS_PER_PIECE):
                positions_R = torch.arange(begin, min(begin + _ROWS_PER_PIECE, stop))
                is_hidden_RS = torch.arange(len(features_TE)) > positions_R[:, None]
                visible_RS = features_TE.new_zeros(is_hidden_RS.shape).masked_fill_(is_hidden_RS, -math.inf)
                mask, borrowed = stream_mask(visible_RS, self.num_streams), Borrowed(keys)
                hidden = self.model(features_TE[None, positions_R], positions=positions_R, cache=borrowed, mask=mask)
                best.append(self._best(hidden[0], MOST_RANKS))
            return torch.cat(best).unbind(1)

        return ranks_by_level(ids, start, self.num_streams, candidates_from)

    def _best(self, hidden_RD: Tensor, count: int) -> Tensor:
        logits = self.output.logits(hidden_RD).flatten(0, -2)
        return self.output.ids[ranked_ids(logits, count)].view(*hidden_RD.shape[:-1], count)  # type: ignore[no-any-return]


class StreamFolderConfig(StreamConfig, TreeFolderConfig):
    """`config.json` of streams."""

    depth_field = "num_streams"

    speculators_model_type: Literal["mirrorsd_streams"] = "mirrorsd_streams"

    def build(self, target: Decoder) -> StreamModel:
        """See `HeadFolderConfig`."""
        return StreamModel(target, self)


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """Return the streams of a folder, on the target's layers and in their dtype, with their tree."""
    config, model, kept_ids = read_head(folder, StreamFolderConfig, target, dtype=target.embedding.weight.dtype)
    return StreamTree(model.to(kept_ids.device), target, kept_ids, config.paths)


class StreamingTarget(TargetModel):
    """A `TargetModel` with streams that draft; its verdicts are computed as in `verify`."""

    def __init__(self, decoder: Decoder, streams: StreamTree, heads: ExitHeads | None = None) -> None:
        backend = EagerBackend(decoder)
        super().__init__(backend, EarlyExit(decoder.lm_head.weight.detach(), heads, backend))
        self.streams, self.num_streams = streams, streams.num_streams
        self._tree = streams.paths

    def set_tree(self, *, size: int, depth: int) -> None:
        """Set the trees to draft: `size` nodes, on paths of at most `depth`."""
        self._tree = cut(self.streams.paths, size, depth)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Add the tokens of this prompt to the vocabulary of exits and streams."""
        super().add_prompt_tokens(prompt)
        self.streams.output.add_prompt_tokens(prompt)

    @inference
    def stream(self, window: Window) -> Verdict:
        """Verify a window after the last committed token; the verdict has the next window."""
        half_way = self.advance(self.embed(window), self.streams.start_layer)
        verdict = self.decide(self.advance(half_way, self.num_layers))
        last = verdict.path[-1] + 1 if verdict.path else verdict.num_accepted
        x_1D = half_way.x_BTD[0, last : last + 1]
        return verdict._replace(window=self.streams.draft(x_1D, self.cache, self._tree))
