"""Shapes of drafters that are no separate model: a few layers beside the target, `lm_head`s, or nothing."""

import re
from collections.abc import Mapping
from typing import Any, Final

from hwprofiles.model_shape import ModelShape
from hwprofiles.models.layer_kinds import Mixer

EAGLE_VOCABULARY: Final = 32_000
"""Rows of the `lm_head` that EAGLE-3's drafters keep (arXiv 2503.01840)."""
LOOKUP: Final = "prompt-lookup"
HEADS: Final[Mapping[str, str]] = {
    "mtp": "MTP head",
    "eagle3": "EAGLE-3 head",
    "medusa": "Medusa heads",
    "dflash": "DFlash drafter",
    LOOKUP: "prompt lookup",
}
"""Names that stand in place of a draft model, and what they are called."""
IN_ONE_PASS: Final[Mapping[str, str]] = {"medusa": "medusa", "dflash": "block", LOOKUP: "prompt_lookup"}
"""Those that draft a whole window at once, and by which method; others draft token by token."""
_ALIASES: Final[Mapping[str, str]] = {
    "nextn": "mtp",
    "eagle": "eagle3",
    "block": "dflash",
    "lookup": LOOKUP,
    "ngram": LOOKUP,
    "promptlookup": LOOKUP,
}
BLOCK_LAYERS: Final = 5
"""Layers of DFlash's drafters for 4B to 8B targets (arXiv 2602.06036)."""
MEDUSA_HEADS: Final = 4
_BORROWERS: Final = ("mtp", "dflash")
"""Heads whose `lm_head` is the target's."""
_ONE_LAYER: Final[Mapping[str, Any]] = {
    "num_layers": 1,
    "dense_layers": 0,
    "dense_intermediate_size": 0,
    "sliding": None,
    "linear": None,
    "mixers": (),
    "mtp_layers": 0,
    "tie_embeddings": True,
    "learned_positions": 0,
}
_DENSE: Final[Mapping[str, Any]] = {
    "num_experts": 0,
    "experts_per_token": 0,
    "expert_hidden_size": 0,
    "shared_intermediate_size": 0,
    "latent": None,
}


def head_named(name: str) -> str | None:
    """Return which of `HEADS` a name means, such as `EAGLE-3` or `ngram`; None for none of them."""
    plain = re.sub(r"[ _-]", "", name.lower())
    return next((own for own in HEADS if re.sub("-", "", own) == plain), _ALIASES.get(plain))


def head_shape(name: str, target: ModelShape) -> ModelShape:
    """Return the shape of one of `HEADS` for a target; the small projection that joins two states is left out.

    A head for multi-token prediction is a layer like the target's, experts and all; those of EAGLE-3 and DFlash are
    dense, and as wide as what a token reads of the target's. Each Medusa head is a square matrix and an `lm_head`.
    A lookup reads nothing. None holds an embedding table, and those of multi-token prediction and DFlash no `lm_head`:
    engines give them the target's, even where a checkpoint has copies, as DeepSeek's and GLM's do (vLLM logs "Sharing
    target model lm_head weights with the draft model"; llama.cpp's `nextn.shared_head_head` is optional). EAGLE-3's
    published heads have an `lm_head` of their own rows (`d2t`), and mostly no embeddings.
    """
    called = LOOKUP if name == LOOKUP else f"{target.name} {HEADS[name]}"
    latent = target.latent and target.latent.model_copy(update={"num_index_layers": 0})  # its layer has an indexer
    fields = {field: getattr(target, field) for field in ModelShape.model_fields}  # not what was worked out of them
    fields |= dict(_ONE_LAYER) | {"latent": latent, "name": called, "source": "a layer of its target"}
    fields["borrows_lm_head"] = name in _BORROWERS
    wide = target.shared_intermediate_size + max(1, target.experts_per_token) * target.intermediate_size
    if name == "eagle3":
        kept = min(EAGLE_VOCABULARY, target.vocab_size)
        fields |= dict(_DENSE) | {"intermediate_size": wide, "kept_vocabulary": kept}
    elif name == "dflash":
        fields |= dict(_DENSE) | {"intermediate_size": wide, "num_layers": BLOCK_LAYERS}
    elif name in IN_ONE_PASS:
        count, rows, square = (1, 1, 0) if name == LOOKUP else (MEDUSA_HEADS, target.vocab_size, target.hidden_size**2)
        matrices = Mixer(num_layers=count, parameters=square)
        fields |= dict(_DENSE) | {"num_layers": count, "mixers": (matrices,), "kept_vocabulary": count * rows}
        fields |= {"intermediate_size": 1, "is_gated": False}
    return ModelShape.model_validate(fields)
