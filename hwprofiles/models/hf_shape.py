"""Reads the fields of a Hugging Face `config.json` that a `ModelShape` needs.

Types are strict: a number in quotes is an error. Configs with parts that a shape cannot describe are refused, since
their bytes would be missing from every prediction.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from decoding.errors import ModelError, shown
from decoding.validation import validated

UNKNOWN_PARTS: Final = (
    "mlp_only_layers",
    "moe_layers_enum",
    "ssm_cfg",
    "compress_ratios",
    "linear_attn_config",
    "attention_other_setting",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "layers_block_type",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "attn_type_list",
    "attn_layer_period",
    "expert_layer_period",
    "interleave_moe_layer_step",
    "intermediate_size_mlp",
    "moe_num_experts",
)
"""Config fields whose presence means a part that a shape cannot describe."""
_WITH_EXPERTS: Final = (
    "n_shared_experts",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
)
_WITH_MTP: Final = "qwen3_next"
"""Model type whose checkpoints have a layer for multi-token prediction that the config does not count."""
_KINDS: Final = frozenset({"full_attention", "sliding_attention", "linear_attention"})
TOKENIZERS: Final[Mapping[str, tuple[str, frozenset[int]]]] = {
    "llama-2": ("llama", frozenset({32000})),
    "llama-3": ("llama", frozenset({128256})),
    "qwen-2": ("qwen", frozenset({151936, 152064})),
    "qwen-3.5": ("qwen3_5", frozenset({248320})),
    "mistral-tekken": ("mistral", frozenset({131072})),
    "gemma-2": ("gemma", frozenset({256000})),
    "gemma-4": ("gemma4", frozenset({262144})),
    "gemma-3": ("gemma3", frozenset({262144, 262208})),
    "gpt-oss": ("gpt_oss", frozenset({201088})),
    "glm-4.5": ("glm4_moe", frozenset({151552})),
    "glm-5": ("glm_moe_dsa", frozenset({154880})),
    "deepseek-3": ("deepseek_v3", frozenset({129280})),
    "kimi-k2": ("kimi", frozenset({163840})),
    "opt": ("opt", frozenset({50272})),
}
"""Tokenizers with the beginning of `model_type` and the vocabulary sizes (padded in several ways) that tell them."""

_WITHOUT_GATE: Final = frozenset(
    {"starcoder2", "nemotron", "phi", "gpt_neox", "persimmon", "arcee", "apertus", "jais2"}
)
"""Model types whose feed-forward part has no gate (two matrices), which their configs do not say."""
_TIED: Final = ("gemma", "starcoder2", "cohere")
"""Beginnings of the model types that tie `lm_head` and embeddings unless the config says otherwise."""

_Number = Annotated[int, Field(ge=0, le=1 << 25)] | None


class HfShape(BaseModel):
    """The fields that are read; a config has more."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    model_type: str | None = None
    num_hidden_layers: _Number = None
    hidden_size: _Number = None
    intermediate_size: _Number = None
    ffn_dim: _Number = None
    num_attention_heads: _Number = None
    num_key_value_heads: _Number = None
    head_dim: _Number = None
    vocab_size: _Number = None
    max_position_embeddings: _Number = None
    word_embed_proj_dim: _Number = None
    tie_word_embeddings: bool | None = None
    draft_vocab_size: _Number = None
    quantization_config: dict[str, Any] | None = None
    name: Annotated[str | None, Field(alias="_name_or_path")] = None

    # Experts.
    num_experts: _Number = None
    num_local_experts: _Number = None
    n_routed_experts: _Number = None
    num_experts_per_tok: _Number = None
    top_k_experts: _Number = None
    moe_intermediate_size: _Number = None
    n_shared_experts: _Number = None
    num_shared_experts: _Number = None
    shared_expert_intermediate_size: _Number = None
    first_k_dense_replace: _Number = None
    decoder_sparse_step: _Number = None
    enable_moe_block: bool | None = None

    # Kinds of layers.
    layer_types: list[str] | None = None
    full_attention_interval: _Number = None
    sliding_window: _Number = None
    use_sliding_window: bool | None = None
    sliding_window_pattern: _Number = None
    global_head_dim: _Number = None
    num_global_key_value_heads: _Number = None
    attention_k_eq_v: bool | None = None
    attn_output_gate: bool | None = None
    linear_num_key_heads: _Number = None
    linear_num_value_heads: _Number = None
    linear_key_head_dim: _Number = None
    linear_value_head_dim: _Number = None
    linear_conv_kernel_dim: _Number = None
    q_lora_rank: _Number = None
    kv_lora_rank: _Number = None
    qk_rope_head_dim: _Number = None
    qk_nope_head_dim: _Number = None
    v_head_dim: _Number = None
    index_topk: _Number = None
    index_n_heads: _Number = None
    index_head_dim: _Number = None
    indexer_types: list[str] | None = None
    num_nextn_predict_layers: _Number = None
    mtp_num_hidden_layers: _Number = None

    @property
    def kind(self) -> str:
        """`model_type`, or an empty text."""
        return self.model_type or ""

    @property
    def tokenizer(self) -> str | None:
        """The key of `TOKENIZERS` by model type and vocabulary; None if not known."""
        rows = self.vocab_size
        return next(
            (name for name, (start, sizes) in TOKENIZERS.items() if self.kind.startswith(start) and rows in sizes), None
        )

    @property
    def layers(self) -> Counter[str]:
        """Number of layers of each kind; empty if all have full attention."""
        num_layers = self.num_hidden_layers or 0
        if self.layer_types is not None:
            return Counter(self.layer_types[:num_layers])
        interval, other_kind = self.full_attention_interval, "linear_attention"
        if self.sliding_window and not interval:
            interval, other_kind = self._full_among_sliding, "sliding_attention"
        if not interval:
            return Counter()
        num_full = num_layers // interval
        return Counter({"full_attention": num_full, other_kind: num_layers - num_full})

    @property
    def _full_among_sliding(self) -> int | None:
        """Interval of full-attention layers among sliding ones, by model type; None if the type is not known."""
        pattern, never = self.sliding_window_pattern, (self.num_hidden_layers or 0) + 1
        intervals = {"gemma3": pattern or 6, "gemma2": 2, "cohere2": pattern or 4, "gpt_oss": 2}
        intervals |= {"mistral": never, "starcoder2": never}
        return next((interval for start, interval in intervals.items() if self.kind.startswith(start)), None)

    @property
    def num_all_experts(self) -> int:
        """Number of routed experts per layer; 0 for a dense model."""
        if self.enable_moe_block is False:
            return 0
        return self.num_experts or self.num_local_experts or self.n_routed_experts or 0


def shape_fields(raw: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the fields of `ModelShape` for a config, or for the text model in a multimodal config.

    Raises:
        ModelError: a field has a wrong type, or the model has parts that a shape cannot describe.
    """
    found = hf_shape(raw, source=source)
    is_opt = found.ffn_dim is not None
    positions, ties = found.max_position_embeddings, found.tie_word_embeddings
    return {
        "name": found.name or Path(source).parent.name or source,
        "source": source,
        "tokenizer": found.tokenizer,
        "num_layers": found.num_hidden_layers,
        "hidden_size": found.hidden_size,
        "vocab_size": found.vocab_size,
        "kept_vocabulary": found.draft_vocab_size or None,
        "tie_embeddings": is_opt or found.kind.startswith(_TIED) if ties is None else ties,
        "max_position": positions,
        "is_gated": not is_opt and found.kind not in _WITHOUT_GATE,
        "learned_positions": (positions or 0) + 2 if is_opt else 0,
        "mtp_layers": found.num_nextn_predict_layers or found.mtp_num_hidden_layers or int(found.kind == _WITH_MTP),
        "published_in": _published_in(found.quantization_config or {}),
        **_attention(found),
        **_feed_forward(found),
    }


_OF_EXPERTS: Final = {"pack-quantized": "int4-experts", "mxfp4-pack-quantized": "mxfp4"}
"""Our weight formats for compressed-tensors checkpoints in which only experts are quantised, as in Kimi K2."""


def _published_in(quantization: Mapping[str, Any]) -> str:
    """Return our weight format for a `quantization_config`; bf16 if it names none that we know."""
    method, bits = quantization.get("quant_method"), quantization.get("bits", 4)
    if method == "compressed-tensors" and any("self_attn" in str(one) for one in quantization.get("ignore") or ()):
        return _OF_EXPERTS.get(str(quantization.get("format")), "bf16")
    return str(method) if method in ("fp8", "mxfp4") or (method in ("awq", "gptq") and bits == 4) else "bf16"


_OF_TARGET: Final = {"num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"}
"""Hugging Face's names for fields of `target_shape` in the config of a draft that was trained here."""
_ANY_POSITION: Final = 1 << 24


def _of_trained_draft(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate the config of a draft trained here (some layers of its target); return any other config unchanged."""
    sizes, layers = raw.get("target_shape"), raw.get("source_layers")
    if not isinstance(sizes, Mapping) or not isinstance(layers, list):
        return raw
    of_layer = {_OF_TARGET.get(name, str(name)): value for name, value in sizes.items()}
    counts = {"num_hidden_layers": len(layers), "max_position_embeddings": _ANY_POSITION, "tie_word_embeddings": True}
    return {**raw, **of_layer, **counts}


def hf_shape(raw: Mapping[str, Any], *, source: str) -> HfShape:
    """Return the fields of a config's text model, or of a draft that was trained here; raises as `shape_fields`."""
    raw = _of_trained_draft(raw)
    text = raw.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ModelError(f"{source}: text_config: expected an object, found {shown(text)}")
    fields = {name: value for name, value in {**raw, **text}.items() if value is not None}
    found = validated(HfShape, fields, ModelError, source=source)
    unknown = [name for name in UNKNOWN_PARTS if fields.get(name)]
    types = found.layer_types
    if types is not None and (not set(types) <= _KINDS or len(types) < (found.num_hidden_layers or 0)):
        unknown.append("layer_types")
    unknown += [name for name in _WITH_EXPERTS if fields.get(name) and not found.num_all_experts]
    if (found.decoder_sparse_step or 1) > 1:
        unknown.append("decoder_sparse_step")
    if found.word_embed_proj_dim not in (None, found.hidden_size):
        unknown.append("word_embed_proj_dim")
    if unknown:
        msg = f"{source}: {unknown[0]} is {shown(fields[unknown[0]])}; a shape does not describe such models yet"
        raise ModelError(msg)
    return found


def _attention(found: HfShape) -> dict[str, Any]:
    """Return the fields that describe attention; those of full attention are `ModelShape`'s own."""
    hidden, heads = found.hidden_size, found.num_attention_heads
    head_dim = found.head_dim or (hidden // heads if hidden and heads else None)
    sliding_heads = {"num_heads": heads, "num_kv_heads": found.num_key_value_heads or heads, "head_dim": head_dim}
    layers = found.layers
    num_sliding = layers["sliding_attention"] if found.use_sliding_window is not False else 0
    full_heads = sliding_heads
    if layers["full_attention"] and num_sliding:  # Gemma 4: its layers of full attention have other heads
        full_heads = sliding_heads | {
            "num_kv_heads": found.num_global_key_value_heads or sliding_heads["num_kv_heads"],
            "head_dim": found.global_head_dim or head_dim,
            "values_are_keys": bool(found.attention_k_eq_v),
        }
    fields: dict[str, Any] = full_heads | {"gates_output": _gates(found)}
    if num_sliding:
        fields["sliding"] = sliding_heads | {"num_layers": num_sliding, "window": found.sliding_window}
    if layers["linear_attention"]:
        fields["linear"] = {
            "num_layers": layers["linear_attention"],
            "num_key_heads": found.linear_num_key_heads,
            "num_value_heads": found.linear_num_value_heads,
            "key_head_dim": found.linear_key_head_dim,
            "value_head_dim": found.linear_value_head_dim,
            "conv_kernel": found.linear_conv_kernel_dim or 4,
        }
    if found.kv_lora_rank:
        fields["latent"] = {
            "query_rank": found.q_lora_rank or 0,
            "kv_rank": found.kv_lora_rank,
            "rope_dim": found.qk_rope_head_dim,
            "nope_dim": found.qk_nope_head_dim,
            "value_dim": found.v_head_dim,
            "read_tokens": found.index_topk or 0,
            "index_heads": found.index_n_heads or 0,
            "index_dim": found.index_head_dim or 0,
            "num_index_layers": (found.indexer_types or []).count("full"),
        }
    return fields


def _gates(found: HfShape) -> bool:
    """Return whether full attention gates its output; Qwen3-Next and Qwen3.5 do, even if the config does not say so."""
    if found.attn_output_gate is None:
        return found.kind.startswith(("qwen3_next", "qwen3_5"))
    return found.attn_output_gate


def _feed_forward(found: HfShape) -> dict[str, Any]:
    experts = found.num_all_experts
    if not experts:
        return {"intermediate_size": found.ffn_dim or found.intermediate_size}
    width = found.moe_intermediate_size or found.intermediate_size
    dense_layers = found.first_k_dense_replace or 0
    num_shared = found.n_shared_experts or found.num_shared_experts or 0
    shared = found.shared_expert_intermediate_size or num_shared * (width or 0)
    if found.enable_moe_block:  # Gemma 4: every layer has a feed-forward part beside its experts
        shared = found.intermediate_size or 0
    return {
        "intermediate_size": width,
        "num_experts": experts,
        "experts_per_token": found.num_experts_per_tok or found.top_k_experts or 0,
        "shared_intermediate_size": shared,
        "dense_layers": dense_layers,
        "dense_intermediate_size": found.intermediate_size if dense_layers else 0,
    }
