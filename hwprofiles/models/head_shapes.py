"""Heads that draft for a target, as shapes: one layer beside the target, and an output head of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwprofiles.model_shape import ModelShape

EAGLE_VOCABULARY: Final = 32_000
"""Rows of the output head that EAGLE-3's drafters keep (arXiv 2503.01840)."""
HEADS: Final[Mapping[str, str]] = {"mtp": "MTP head", "eagle3": "EAGLE-3 head"}
"""Names that stand in place of a draft model, and what they are called."""
_ONE_LAYER: Final[Mapping[str, Any]] = {
    "num_layers": 1,
    "dense_layers": 0,
    "dense_intermediate_size": 0,
    "sliding": None,
    "linear": None,
    "mixers": (),
    "mtp_layers": 0,
}
_DENSE: Final[Mapping[str, Any]] = {
    "num_experts": 0,
    "experts_per_token": 0,
    "expert_hidden_size": 0,
    "shared_intermediate_size": 0,
    "latent": None,
}


def head_shape(name: str, target: ModelShape) -> ModelShape:
    """Return the shape of a head of `HEADS` for a target; the small projection that joins two states is left out.

    A head for multi-token prediction is a layer like the target's, experts and all; EAGLE-3's is dense, and as wide as
    what a token reads of the target's.
    """
    fields = (
        dict(target) | dict(_ONE_LAYER) | {"name": f"{target.name} {HEADS[name]}", "source": "a layer of its target"}
    )
    if name == "eagle3":
        wide = target.shared_intermediate_size + max(1, target.experts_per_token) * target.intermediate_size
        kept = min(EAGLE_VOCABULARY, target.vocab_size)
        fields |= dict(_DENSE) | {"intermediate_size": wide, "kept_vocabulary": kept}
    return ModelShape.model_validate(fields)
