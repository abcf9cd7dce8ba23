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
_BORROWERS: Final = ("mtp", "dflash", "eagle")
"""Heads whose `lm_head` is the target's."""
_HYDRA_STATES: Final = 3.5
"""States that one of its four heads reads in the mean: the target's and those of tokens before (arXiv 2402.05109)."""
_JOINING: Final = ("mtp", "eagle", "eagle3")
_WITH_ASSISTANTS: Final = "gemma-4"
"""Whose tokenizer models have that are drafted for by a small model of its own, which is called MTP."""
_ASSISTANT_LAYERS: Final = 4
_SMALLEST_WIDE: Final = 2816
"""Width of the smallest target, 26B-A4B, whose assistant is 1024 wide; E2B's and E4B's are 256."""
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
    """Return the shape of one of `HEADS` for a target; or of EAGLE's first two, or of one of Hydra's four heads.

    A head for multi-token prediction is a layer like the target's, experts and all, but Gemma 4's is a small model of
    its own (`_assistant`); those of EAGLE and DFlash are dense, and as wide as what a token reads of the target's.
    Heads for multi-token prediction and EAGLE's join two states into one before their layer. Each Medusa head is a
    square matrix and an `lm_head`. A lookup reads nothing. None holds an embedding table, and those of multi-token
    prediction, DFlash and EAGLE's first two (arXiv 2401.15077, 2406.16858) no `lm_head`: engines give them the
    target's, even where a checkpoint has copies, as DeepSeek's and GLM's do (vLLM logs "Sharing target model lm_head
    weights with the draft model"; llama.cpp's `nextn.shared_head_head` is optional). EAGLE-3's published heads have an
    `lm_head` of their own rows (`d2t`), and mostly no embeddings.
    """
    if name == "mtp" and target.tokenizer == _WITH_ASSISTANTS:
        return _assistant(target)
    called = LOOKUP if name == LOOKUP else f"{target.name} {HEADS.get(name, f'{name} head')}"
    latent = target.latent and target.latent.model_copy(update={"num_index_layers": 0})  # its layer has an indexer
    fields = {field: getattr(target, field) for field in ModelShape.model_fields}  # not what was worked out of them
    fields |= dict(_ONE_LAYER) | {"latent": latent, "name": called, "source": "a layer of its target"}
    fields["borrows_lm_head"] = name in _BORROWERS
    wide = target.shared_intermediate_size + max(1, target.experts_per_token) * target.intermediate_size
    if name in _JOINING:
        layers = [*ModelShape.model_validate(fields).layer_kinds]
        if name == "mtp":  # which is like a layer of full attention, where shapes tell these apart from others
            layers += [one for one in target.mixers if one.window is None and not one.state_bytes]
        joined = {"num_layers": 1, "parameters": layers[-1].parameters + 2 * target.width**2}
        fields |= {"mixers": (layers[-1].model_copy(update=joined),), "latent": None}
    if name in ("eagle", "eagle3"):
        kept = min(EAGLE_VOCABULARY, target.vocab_size) if name == "eagle3" else None
        fields |= dict(_DENSE) | {"intermediate_size": wide, "kept_vocabulary": kept}
    elif name == "dflash":
        fields |= dict(_DENSE) | {"intermediate_size": wide, "num_layers": BLOCK_LAYERS}
    elif name in IN_ONE_PASS or name == "hydra":
        count, rows, square = (1, 1, 0) if name == LOOKUP else (MEDUSA_HEADS, target.vocab_size, target.hidden_size**2)
        if name == "hydra":
            count, square = 1, round(_HYDRA_STATES * square)
        matrices = Mixer(num_layers=count, parameters=square)
        fields |= dict(_DENSE) | {"num_layers": count, "mixers": (matrices,), "kept_vocabulary": count * rows}
        fields |= {"intermediate_size": 1, "is_gated": False}
    return ModelShape.model_validate(fields)


def _assistant(target: ModelShape) -> ModelShape:
    """Return the shape of the model that drafts for a Gemma 4: google/gemma-4-31b-it-assistant and its like.

    Its layers have queries only, and read what the target's last layers keep, so it keeps nothing (which is not told
    apart). States of the target are projected to its width, and back. Its `lm_head` is its own table. By its config and
    this the one for 31B has 469 million parameters, and that for 12B 423; their model cards say 470 and 423.
    """
    width = 256 if target.hidden_size < _SMALLEST_WIDE else 1024
    projections = 3 * width * target.hidden_size / _ASSISTANT_LAYERS
    sliding = target.sliding
    num_sliding = _ASSISTANT_LAYERS - 1 if sliding else 0
    reads = [target.mixer(_ASSISTANT_LAYERS - num_sliding, width)]
    reads += [sliding.mixer(num_sliding, width, window=sliding.window)] if sliding else []
    mixers = [
        # queries and output alone: a key takes four operations for each of their elements
        one.model_copy(update={"parameters": width * one.flops_per_key / 2 + projections})
        for one in reads
    ]
    fields = {field: getattr(target, field) for field in ModelShape.model_fields}
    fields |= dict(_ONE_LAYER) | dict(_DENSE) | {"num_layers": _ASSISTANT_LAYERS, "mixers": mixers}
    fields |= {"hidden_size": width, "intermediate_size": 8 * width, "published_in": "bf16"}
    fields |= {"name": f"{target.name} assistant", "source": "its config.json"}
    return ModelShape.model_validate(fields)
