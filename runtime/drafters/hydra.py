"""Hydra++ heads (arXiv 2402.05109): like Medusa's, but each head also reads the tokens drafted before it.

A decoder layer (the prefix layer) over the target's last hidden states h_t gives h'_t. Head i proposes the token i + 1
positions after t, from h'_t and the embeddings of the i tokens between. Unlike in the paper, the layer's MLP is
narrower, heads share all residual blocks but their first, and the output rows are the target's rows of the kept
vocabulary. Shapes: legend of `runtime.models.decoder`; M rows, K heads, R nodes of a level.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from decoding.messages import NO_WINDOW, Window
from decoding.tree_shape import MOST_RANKS, parents_of
from decoding.tree_shape import Path as TreePath
from runtime.backends.backend import prefill_pieces
from runtime.drafters.head_drafter import HeadDrafter, KeptRowHeads, TreeFolderConfig, load_head
from runtime.drafters.window_drafter import Steps
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer, Rotary, causal_mask, rms_norm
from runtime.models.kv_cache import KVCache
from runtime.models.row_invariance import WithinCall
from runtime.models.vocabulary import ranked_ids
from runtime.storage.weight_folder import Count, Strict, Width
from runtime.wire.measurement import Measurement


class HydraConfig(Strict):
    """Sizes: number of heads, and widths of the prefix layer's MLP, of each head's block, and of the shared blocks."""

    num_heads: Count
    prefix_width: Width
    head_width: Width
    shared_widths: Annotated[tuple[Width, ...], Field(max_length=64)]


class ResidualBlock(nn.Module):
    """x + down(SiLU(up(norm(x)))); before training it is the identity, as `down` is zero."""

    def __init__(self, hidden_size: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.up = nn.Linear(hidden_size, width)
        self.down = nn.Linear(width, hidden_size)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Map hidden states [M, D] to hidden states [M, D]."""
        unit_MD = rms_norm(x_MD.to(self.norm.dtype), self.norm, self.eps)
        return x_MD + self.down(F.silu(self.up(unit_MD)))  # type: ignore[no-any-return]


class HydraModel(KeptRowHeads):
    """The prefix layer and K heads over one reduced vocabulary."""

    embedding_VD: Tensor

    def __init__(self, target_config: ModelConfig, config: HydraConfig) -> None:
        super().__init__(target_config.hidden_size)
        self.config = config
        self.layer_config = replace(target_config, num_layers=1, intermediate_size=config.prefix_width)
        hidden_size, eps = target_config.hidden_size, target_config.norm_eps
        self.prefix = Layer(self.layer_config)
        self.by_distance = nn.ModuleList(
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(config.num_heads)
        )
        for weight in self.by_distance.parameters():
            nn.init.zeros_(weight)
        self.own = nn.ModuleList(ResidualBlock(hidden_size, config.head_width, eps) for _ in range(config.num_heads))
        self.shared = nn.ModuleList(ResidualBlock(hidden_size, width, eps) for width in config.shared_widths)
        self.register_buffer("embedding_VD", torch.zeros(target_config.vocab_size, hidden_size), persistent=False)
        self.rotary = Rotary(self.layer_config)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """See `KeptRowHeads`; the target's embedding is used too."""
        super().share(target, kept_ids)
        self.embedding_VD = target.embedding.weight.detach()
        self.rotary = Rotary(self.layer_config).to(self.embedding_VD.device)

    def read_prefix(
        self, x_BTD: Tensor, *, positions: Tensor, mask: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """Return h' [B, T, D] for the target's normalised last states; arguments as in `Decoder.run_layers`."""
        rotary = self.rotary(positions, x_BTD.dtype)
        keys = WithinCall() if cache is None else cache
        sight = keys.sight(mask, x_BTD.shape[1], self.layer_config.num_queries_per_kv)
        return self.prefix(x_BTD, rotary, sight, keys, 0)  # type: ignore[no-any-return]

    def embed(self, ids_M: Tensor) -> Tensor:
        """Return embeddings of tokens divided by their RMS, [M, D], for `forward`."""
        rows = self.embedding_VD[ids_M]
        return rms_norm(rows, rows.new_ones(rows.shape[-1]), self.layer_config.norm_eps)

    def forward(self, prefix_MD: Tensor, tokens_MD: Sequence[Tensor]) -> Tensor:
        """Return the states [M, D] for `output` of head i, where i >= 1 is the number of tokens given.

        `prefix_MD` is h' of the last known position, `tokens_MD` are the embeddings (`embed`) of the tokens after it,
        the last one first.
        """
        x_MD = prefix_MD
        for projection, token_MD in zip(self.by_distance, tokens_MD, strict=False):
            x_MD = x_MD + projection(token_MD)
        for block in (self.own[len(tokens_MD) - 1], *self.shared):
            x_MD = block(x_MD)
        return x_MD


class HydraDrafter(HeadDrafter):
    """Hydra++ heads, their tree, and the KV cache of the prefix layer over the committed text."""

    methods = ("hydra",)

    def __init__(self, model: HydraModel, paths: Sequence[TreePath], *, num_layers: int) -> None:
        super().__init__(model, paths, num_layers=num_layers)
        self.cache = KVCache(model.layer_config, 0, dtype=self.dtype, device=str(self.device))
        self._inner: list[list[TreePath]] = []
        self._last_token = 0
        self._prefix_1D: Tensor | None = None

    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:
        self.cache.start(capacity)
        self._last_token, self._prefix_1D = prompt[-1], None
        for start, stop in prefill_pieces(len(features_TE)):
            self._read(features_TE[start:stop])

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree after the committed text, level by level (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._last_token = committed[-1]
            self._read(features_TE.to(self.device))
        if self._prefix_1D is None:
            # after a prompt of one token there is no hidden state yet, and so no tree
            yield max(len(committed), 1)
            return NO_WINDOW
        tokens: dict[TreePath, int] = {(): self._last_token}
        for level, inner in enumerate(self._inner):
            self._extend(tokens, inner, self._prefix_1D, self._counts[level])
            yield len(inner) if level else max(len(committed), 1)
        return Window(tuple(tokens[path] for path in self._tree), parents=parents_of(self._tree))

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """See `WindowDrafter`; the step runs the prefix layer over `rows` rows and drafts children of `rows` nodes.

        No real step of so many rows computes more.
        """
        rows, context = measurement.rows, measurement.context
        size = len(self.model.target_norm)
        self.cache.start(context + rows)
        self.cache.fill_random(context)
        features_TD = torch.randn(rows, size, dtype=self.dtype, device=self.device)
        ids_R1 = torch.randint(len(self.model.embedding_VD), (rows, 1), device=self.device)

        def step() -> object:
            prefix_1D = self._read(features_TD)
            self.cache.set_length(context)
            return self._candidates(prefix_1D.expand(rows, -1), ids_R1, MOST_RANKS).tolist()

        return step

    def candidates_along(self, ids: Sequence[int], first: int, features_TE: Tensor) -> Iterator[Tensor]:
        """See `HeadDrafter`; the tokens that heads read are those of the text."""
        count, num_heads = len(ids) - 2, self.model.config.num_heads
        prefix_TD = self.model.read_prefix(
            (features_TE[:count] * self.model.target_norm)[None],
            positions=torch.arange(count, device=self.device),
            mask=causal_mask(count, self.dtype).to(self.device),
        )[0]
        # row i: the token before position first + i, then those that deeper heads read
        followed = torch.tensor([*ids[first - 1 :], *[0] * num_heads], device=self.device)
        seen_NK = followed.unfold(0, num_heads, 1)[: len(ids) - first]
        for level in range(num_heads):
            yield self._candidates(prefix_TD[first - 2 :], seen_NK[:, : level + 1], MOST_RANKS)

    def _set_tree(self, size: int, depth: int) -> None:
        super()._set_tree(size, depth)
        inner = dict.fromkeys(path[:-1] for path in self._tree)
        self._inner = [[path for path in inner if len(path) == level] for level in range(len(self._counts))]

    @torch.inference_mode()
    def _read(self, features_TD: Tensor) -> Tensor:
        """Run the prefix layer over the next committed positions; return h' of the last one, [1, D]."""
        start, count = self.cache.cursor, len(features_TD)
        prefix_BTD = self.model.read_prefix(
            (features_TD * self.model.target_norm)[None],
            positions=torch.arange(start, start + count, device=self.device),
            mask=None,
            cache=self.cache,
        )
        self.cache.advance(count)
        self._prefix_1D = prefix_BTD[0, -1:]
        return self._prefix_1D

    def _extend(self, tokens: dict[TreePath, int], inner: Sequence[TreePath], prefix_1D: Tensor, count: int) -> None:
        seen = [[tokens[path[:length]] for length in range(len(path) + 1)] for path in inner]
        seen_RL = torch.tensor(seen, device=self.device)
        candidates_RC = self._candidates(prefix_1D.expand(len(inner), -1), seen_RL, count)
        for path, candidates in zip(inner, candidates_RC.tolist(), strict=True):
            tokens |= {(*path, rank): token for rank, token in enumerate(candidates)}

    @torch.inference_mode()
    def _candidates(self, prefix_RD: Tensor, seen_RL: Tensor, count: int) -> Tensor:
        """Return the best target ids [R, C] after the tokens [R, L] that follow the hidden state, in text order."""
        tokens = [self.model.embed(ids_R) for ids_R in reversed(seen_RL.unbind(1))]
        output = self.model.output
        return output.ids[ranked_ids(output.logits(self.model(prefix_RD, tokens)), count)]  # type: ignore[no-any-return]


class HydraFolderConfig(HydraConfig, TreeFolderConfig):
    """`config.json` of Hydra++ heads."""

    speculators_model_type: Literal["mirrorsd_hydra"] = "mirrorsd_hydra"

    def build(self, target: Decoder) -> HydraModel:
        """See `HeadFolderConfig`."""
        return HydraModel(target.config, self)


def load_hydra(folder: Path, target: Decoder, *, dtype: torch.dtype) -> HydraDrafter:
    """Return the drafter of a folder of heads; see `load_head`."""
    config, heads = load_head(folder, HydraFolderConfig, target, dtype=dtype)
    return HydraDrafter(heads, config.paths, num_layers=target.config.num_layers)
