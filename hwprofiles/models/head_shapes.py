"""Shapes of drafters that are not draft models: heads with a few layers, Medusa's `lm_head`s, or prompt lookup."""

import re
from collections.abc import Mapping
from typing import Any, Final

from hwprofiles.model_shape import ModelShape
from hwprofiles.models.layer_kinds import Mixer

EAGLE_VOCABULARY: Final = 32_000
"""Rows of the reduced `lm_head` of EAGLE-3 heads (arXiv 2503.01840)."""
LOOKUP: Final = "prompt-lookup"
HEADS: Final[Mapping[str, str]] = {
    "mtp": "MTP head",
    "eagle3": "EAGLE-3 head",
    "medusa": "Medusa heads",
    "dflash": "DFlash drafter",
    LOOKUP: "prompt lookup",
}
"""Names that may be given instead of a draft model, with their titles."""
IN_ONE_PASS: Final[Mapping[str, str]] = {"medusa": "medusa", "dflash": "block", LOOKUP: "prompt_lookup"}
"""Drafters that draft a whole window in one pass, with their method; the others draft token by token."""
_ALIASES: Final[Mapping[str, str]] = {
    "nextn": "mtp",
    "eagle": "eagle3",
    "block": "dflash",
    "lookup": LOOKUP,
    "ngram": LOOKUP,
    "promptlookup": LOOKUP,
}
_PUBLISHED: Final = re.compile(
    r"(?P<eagle3>eagle[-_ ]?3)|(?P<dflash>dflash)|(?P<medusa>medusa)|(?P<mtp>gemma-?4\b.*assistant)", re.IGNORECASE
)
"""What tells in the names of published heads which of `HEADS` they are, as in `yuhuili/EAGLE3-LLaMA3.1-Instruct-8B`."""
BLOCK_LAYERS: Final = 5
"""Layers of DFlash's drafters for 4B to 8B targets (arXiv 2602.06036)."""
MEDUSA_HEADS: Final = 4
_BORROWERS: Final = ("mtp", "dflash", "eagle")
"""Heads that use the target's `lm_head`."""
_HYDRA_STATES: Final = 3.5
"""Mean number of states that one of Hydra's four heads reads: the target's and one per drafted token before it
(arXiv 2402.05109)."""
_JOINING: Final = ("mtp", "eagle", "eagle3")
"""Heads that project a hidden state and an embedding to one state before their layer."""
_WITH_ASSISTANTS: Final = "gemma-4"
"""Tokenizer of the targets whose MTP head is a small model, called assistant."""
_ASSISTANT_LAYERS: Final = 4
_SMALLEST_WIDE: Final = 2816
"""Least target width (26B-A4B) with an assistant 1024 wide; the assistants of E2B and E4B are 256 wide."""
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
    """Return the key of `HEADS` that a name such as `EAGLE-3`, `ngram` or a published head's means; None if none."""
    plain, published = re.sub(r"[ _-]", "", name.lower()), _PUBLISHED.search(name.rpartition("/")[2])
    known = next((head for head in HEADS if head.replace("-", "") == plain), _ALIASES.get(plain))
    return known or (published.lastgroup if published is not None else None)


def head_shape(name: str, target: ModelShape) -> ModelShape:
    """Return the shape of a drafter for a target: one of `HEADS`, or `eagle` (EAGLE-1 and 2), or `hydra` (one head).

    - MTP: a layer like the target's, with its experts. Gemma 4's is a small model (`_assistant`).
    - EAGLE: a dense layer, as wide as what one token reads of a target's layer. MTP and EAGLE heads also project two
      states to one before their layer.
    - DFlash: `BLOCK_LAYERS` dense layers of that width.
    - Medusa: each head is a square matrix and an `lm_head`. Prompt lookup reads nothing.

    No head holds an embedding table. MTP, DFlash and EAGLE-1/2 (arXiv 2401.15077, 2406.16858) hold no `lm_head`:
    engines use the target's, even if a checkpoint has copies, as DeepSeek's and GLM's do (vLLM logs "Sharing target
    model lm_head weights with the draft model"; llama.cpp's `nextn.shared_head_head` is optional). EAGLE-3 has an
    `lm_head` of fewer rows (`d2t`).
    """
    if name == "mtp" and target.tokenizer == _WITH_ASSISTANTS:
        return _assistant(target)
    called = LOOKUP if name == LOOKUP else f"{target.name} {HEADS.get(name, f'{name} head')}"
    latent = target.latent and target.latent.model_copy(update={"num_index_layers": 0})  # 0: all layers have an indexer
    fields = {field: getattr(target, field) for field in ModelShape.model_fields}
    fields |= dict(_ONE_LAYER) | {"latent": latent, "name": called, "source": "a layer of its target"}
    fields["borrows_lm_head"] = name in _BORROWERS
    wide = target.shared_intermediate_size + max(1, target.experts_per_token) * target.intermediate_size
    if name in _JOINING:
        layers = [*ModelShape.model_validate(fields).layer_kinds]
        if name == "mtp":  # an MTP layer is like the target's layers of full attention
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
    """Return the shape of the small model that drafts for a Gemma 4, such as google/gemma-4-31b-it-assistant.

    Its layers have queries only and read the KV cache of the target's last layers. It keeps no cache, although this
    shape counts one. States of the target are projected to its width, and back. It has its own `lm_head`. This shape
    has 469 million parameters for 31B and 423 million for 12B; the model cards say 470 and 423.
    """
    width = 256 if target.hidden_size < _SMALLEST_WIDE else 1024
    projections = 3 * width * target.hidden_size / _ASSISTANT_LAYERS
    sliding = target.sliding
    num_sliding = _ASSISTANT_LAYERS - 1 if sliding else 0
    reads = [target.mixer(_ASSISTANT_LAYERS - num_sliding, width)]
    reads += [sliding.mixer(num_sliding, width, window=sliding.window)] if sliding else []
    mixers = [
        # parameters of the query and output projections only: a key takes 4 FLOPs per element of the queries
        one.model_copy(update={"parameters": width * one.flops_per_key / 2 + projections})
        for one in reads
    ]
    fields = {field: getattr(target, field) for field in ModelShape.model_fields}
    fields |= dict(_ONE_LAYER) | dict(_DENSE) | {"num_layers": _ASSISTANT_LAYERS, "mixers": mixers}
    fields |= {"hidden_size": width, "intermediate_size": 8 * width, "published_in": "bf16"}
    fields |= {"name": f"{target.name} assistant", "source": "its config.json"}
    return ModelShape.model_validate(fields)
