"""Medusa-1 heads (arXiv 2401.10774): propose the tokens after the next one from the target's last hidden state alone.

Our heads are trained square projections, whose output rows are the target's rows of the kept vocabulary. Published
heads (github.com/FasterDecoding/Medusa) have residual blocks `{k}.{layer}.linear.weight` and `.bias`, and an output
matrix `{k}.{medusa_num_layers}.weight`, which later checkpoints leave out; names may begin with `medusa_head.`. Shapes:
legend of `runtime.models.decoder`; M rows, K heads.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.nn import functional as F

from decoding.messages import NO_WINDOW
from decoding.schedule import MAX_TREE
from decoding.tree_shape import MOST_RANKS, cut, grow
from decoding.tree_shape import Path as TreePath
from runtime.arrays import numpy_type
from runtime.drafters.head_drafter import HeadDrafter, KeptRowHeads, TreeFolderConfig, load_head
from runtime.drafters.trees import candidates_per_level, window_of
from runtime.drafters.window_drafter import Steps
from runtime.models.decoder import Decoder
from runtime.models.vocabulary import OutputRows, ranked_ids
from runtime.storage.safetensors_files import published_parameters, read_published
from runtime.storage.weight_folder import Count, Strict, read_config
from runtime.wire.measurement import Measurement


class MedusaConfig(Strict):
    """Sizes: number of heads (head k, from 1, proposes the token k + 1 positions ahead), and of blocks of each head."""

    num_heads: Count
    num_blocks: Count


class MedusaHead(nn.Module):
    """Residual blocks x + SiLU(Wx + b), then x + Px if it has P; W, b and P start at zero, so it starts as identity."""

    def __init__(self, hidden_size: int, num_blocks: int, *, has_projection: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_blocks))
        self.projection = nn.Linear(hidden_size, hidden_size, bias=False) if has_projection else None
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Map the target's normalised last hidden states [M, D] to states for output rows [M, D]."""
        for block in self.blocks:
            x_MD = x_MD + F.silu(block(x_MD))
        if self.projection is not None:
            x_MD = x_MD + self.projection(x_MD)
        return x_MD


class MedusaModel(KeptRowHeads):
    """K heads over one reduced vocabulary; published heads propose all ids, and may each have other output rows."""

    outputs: Sequence[OutputRows] = ()
    """The output rows of each head, if they are not `output` for all."""

    def __init__(self, hidden_size: int, config: MedusaConfig, *, has_projections: bool = True) -> None:
        super().__init__(hidden_size)
        self.config = config
        self.heads = nn.ModuleList(
            MedusaHead(hidden_size, config.num_blocks, has_projection=has_projections) for _ in range(config.num_heads)
        )

    def forward(self, x_MD: Tensor, num_heads: int) -> list[Tensor]:
        """Return logits of the first `num_heads` heads over the ids of `output`, [M, V] each."""
        outputs = self.outputs or [self.output] * self.config.num_heads
        return [output.logits(head(x_MD)) for head, output in zip(self.heads[:num_heads], outputs, strict=False)]


class MedusaDrafter(HeadDrafter):
    """Medusa heads, their tree, and the target's hidden state from which the next tree is drafted."""

    methods = ("medusa",)

    _feature_1D: Tensor | None = None

    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:  # noqa: ARG002
        # after a prompt of one token there is no hidden state yet, and so no tree
        self._feature_1D = features_TE[-1:] if len(features_TE) else None

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree from the hidden state that predicted the last committed token (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._feature_1D = features_TE[-1:].to(self.device)
        window = NO_WINDOW if self._feature_1D is None else window_of(self._tree, self._draft(self._feature_1D))
        yield max(len(committed), 1)
        return window

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:  # noqa: ARG002
        """See `WindowDrafter`: drafts the largest tree of the heads; rows and context make no difference."""
        weight = self.model.target_norm
        self._counts = candidates_per_level(cut(self.paths, MAX_TREE, self.model.config.num_heads))
        feature_1D = torch.randn(1, len(weight), dtype=weight.dtype, device=self.device)
        return lambda: self._draft(feature_1D)

    def candidates_along(self, ids: Sequence[int], first: int, features_TE: Tensor) -> list[Tensor]:
        """See `HeadDrafter`."""
        return self._candidates(features_TE[first - 2 : len(ids) - 2], (MOST_RANKS,) * self.model.config.num_heads)

    def _draft(self, feature_1D: Tensor) -> list[list[int]]:
        return [candidates_1C[0].tolist() for candidates_1C in self._candidates(feature_1D, self._counts)]

    @torch.inference_mode()
    def _candidates(self, features_ND: Tensor, counts: Sequence[int]) -> list[Tensor]:
        logits, ids = self.model(features_ND * self.model.target_norm, len(counts)), self.model.output.ids
        return [ids[ranked_ids(logits_NV, count)] for logits_NV, count in zip(logits, counts, strict=True)]


class MedusaFolderConfig(MedusaConfig, TreeFolderConfig):
    """`config.json` of Medusa heads."""

    speculators_model_type: Literal["mirrorsd_medusa"] = "mirrorsd_medusa"

    def build(self, target: Decoder) -> MedusaModel:
        """See `HeadFolderConfig`."""
        return MedusaModel(target.config.hidden_size, self)


def load_medusa(folder: Path, target: Decoder, *, dtype: torch.dtype) -> MedusaDrafter:
    """Return the drafter of a folder of heads; see `load_head`."""
    config, heads = load_head(folder, MedusaFolderConfig, target, dtype=dtype)
    return MedusaDrafter(heads, config.paths, num_layers=target.config.num_layers)


WEIGHT_FILES = ("medusa_lm_head.safetensors", "model.safetensors")
_PICKLED_FILE = "medusa_lm_head.pt"
_PREFIX = "medusa_head."

_TOP1_BY_HEAD = (0.56, 0.32, 0.20, 0.15, 0.12)
"""Accuracy of each head's best token (Medusa, arXiv 2401.10774, on a target of 7B)."""
_NUM_NODES = 63
"""The size of the paper's tree."""


class PublishedConfig(BaseModel):
    """The fields of a published `config.json` about the heads; other fields are ignored."""

    medusa_num_heads: Annotated[int, Field(ge=1, le=16)]
    medusa_num_layers: Annotated[int, Field(ge=1, le=16)]


def load_published_medusa(folder: Path, target: Decoder, *, dtype: torch.dtype) -> MedusaDrafter:
    """Return the drafter of a published checkpoint, in `dtype` on the target's device, with `default_tree`.

    Raises `ModelError` for a target of another width or vocabulary, `ModelFormatError` for a missing or damaged file.
    """
    config = read_config(folder, PublishedConfig, "published Medusa heads come with one")
    path, arrays = read_published(folder, WEIGHT_FILES, _PICKLED_FILE)
    tensors = {name.removeprefix(_PREFIX): array for name, array in arrays.items()}
    num_heads, num_layers, vocab_size = config.medusa_num_heads, config.medusa_num_layers, target.config.vocab_size
    sizes = MedusaConfig(num_heads=num_heads, num_blocks=num_layers)
    with torch.device("meta"):
        medusa = MedusaModel(target.config.hidden_size, sizes, has_projections=False)
    shapes = {name: tuple(weight.shape) for name, weight in medusa.named_parameters()}
    wanted = {
        f"heads.{head}.blocks.{layer}.{kind}": (f"{head}.{layer}.linear.{kind}",)
        for head, layer, kind in product(range(num_heads), range(num_layers), ("weight", "bias"))
    }
    own_rows = {f"{head}.{num_layers}.weight": (vocab_size, target.config.hidden_size) for head in range(num_heads)}
    if own_rows.keys() & tensors.keys():
        wanted, shapes = wanted | {name: (name,) for name in own_rows}, shapes | own_rows
    weights = published_parameters(wanted, shapes, tensors, numpy_type(dtype), path=path)
    medusa.load_state_dict(weights, strict=False, assign=True)
    device, targets_VD = target.embedding.weight.device, target.lm_head.weight.detach().to(dtype)
    ids = torch.arange(vocab_size, device=device)
    medusa.outputs = [OutputRows(ids, weights.get(name, targets_VD).to(device)) for name in own_rows]
    medusa.output, medusa.target_norm = medusa.outputs[0], target.final_norm.detach().to(dtype)
    medusa.eval().requires_grad_(requires_grad=False)
    return MedusaDrafter(medusa.to(device), default_tree(num_heads), num_layers=target.config.num_layers)


def default_tree(num_heads: int) -> tuple[TreePath, ...]:
    """Return a tree for heads of unknown accuracy, from the paper's accuracy of each head's best token.

    It assumes that accuracy falls with the square of the rank (from 1), and that heads are right independently.
    """

    def share(path: TreePath) -> float:
        return prod(_TOP1_BY_HEAD[level] / (rank + 1) ** 2 for level, rank in enumerate(path))

    return grow(share, _NUM_NODES, min(num_heads, len(_TOP1_BY_HEAD)))
