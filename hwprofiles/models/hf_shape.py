"""What of a Hugging Face `config.json` a shape is made of, as it is written there: every field with its type.

Nothing is converted: a number in quotes is a damaged file. `hwprofiles.model_shape` gives the fields our names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decoding.errors import ModelError, listed, mistake, shown

UNKNOWN_PARTS: Final = (
    "kv_lora_rank",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "mlp_only_layers",
    "first_k_dense_replace",
    "ssm_cfg",
)
"""Fields that stand for parts a shape has no field for."""
TOKENIZERS: Final[Mapping[str, tuple[str, frozenset[int]]]] = {
    "llama-3": ("llama", frozenset({128256})),
    "qwen-2": ("qwen", frozenset({151936, 152064})),
    "mistral-tekken": ("mistral", frozenset({131072})),
    "gemma-2": ("gemma", frozenset({256000})),
    "gemma-3": ("gemma3", frozenset({262144, 262208})),
    "gpt-oss": ("gpt_oss", frozenset({201088})),
    "opt": ("opt", frozenset({50272})),
}
"""Tokenizers by how `model_type` begins, and by the rows of the output head, which are padded to several sizes."""

Number = Annotated[int, Field(ge=0, le=1 << 25)] | None


class HfShape(BaseModel):
    """Sizes of a decoder; the file has more fields than are read."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    model_type: str | None = None
    num_hidden_layers: Number = None
    hidden_size: Number = None
    intermediate_size: Number = None
    moe_intermediate_size: Number = None
    ffn_dim: Number = None
    num_attention_heads: Number = None
    num_key_value_heads: Number = None
    head_dim: Number = None
    vocab_size: Number = None
    max_position_embeddings: Number = None
    num_experts: Number = None
    num_local_experts: Number = None
    num_experts_per_tok: Number = None
    word_embed_proj_dim: Number = None
    tie_word_embeddings: bool | None = None
    layer_types: list[str] | None = None
    draft_vocab_size: Number = None
    name: Annotated[str | None, Field(alias="_name_or_path")] = None

    @property
    def tokenizer(self) -> str | None:
        """Whose tokenizer it is, as far as its kind and its vocabulary tell."""
        kind, rows = self.model_type or "", self.vocab_size
        return next(
            (name for name, (start, sizes) in TOKENIZERS.items() if kind.startswith(start) and rows in sizes), None
        )


_OF_TARGET: Final = {"num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"}
"""Names of fields where the config of a trained draft says what its layers are like."""
_ANY_POSITION: Final = 1 << 24


def _of_trained_draft(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a draft that was made of some layers of its target, in the fields of other models; others as they are."""
    sizes, layers = raw.get("target_shape"), raw.get("source_layers")
    if not isinstance(sizes, Mapping) or not isinstance(layers, list):
        return raw
    of_layer = {_OF_TARGET.get(name, str(name)): value for name, value in sizes.items()}
    counts = {"num_hidden_layers": len(layers), "max_position_embeddings": _ANY_POSITION, "tie_word_embeddings": True}
    return {**raw, **of_layer, **counts}


def hf_shape(raw: Mapping[str, Any], *, source: str) -> HfShape:
    """Return the text model that a config describes, be it a draft that was trained here.

    Raises:
        ModelError: a field has another type, or there are parts that a shape does not know (shared experts, layers of
            several kinds, compressed keys and values): their bytes would be missing from every prediction.
    """
    raw = _of_trained_draft(raw)
    text = raw.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ModelError(f"{source}: text_config: expected an object, found {shown(text)}")
    fields = {name: value for name, value in {**raw, **text}.items() if value is not None}
    try:
        found = HfShape.model_validate(fields)
    except ValidationError as error:
        mistakes = [f"{source}: {mistake(item)}" for item in error.errors(include_url=False)]
        raise ModelError(listed(mistakes)) from error
    unknown = [name for name in UNKNOWN_PARTS if fields.get(name)]
    unknown += ["layer_types"] * ("linear_attention" in (found.layer_types or ()))
    unknown += ["word_embed_proj_dim"] * (found.word_embed_proj_dim not in (None, found.hidden_size))
    if unknown:
        msg = f"{source}: {unknown[0]} is {shown(fields[unknown[0]])}; a shape does not describe such models yet"
        raise ModelError(msg)
    return found
