"""Names of a decoder's parameters, ours and those of Hugging Face folders, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from runtime.models.config import ModelConfig

LEARNED_OFFSET: Final = 2
"""First row of OPT's position table that is used: two rows were meant for padding."""


class _Names(NamedTuple):
    """Names of a family's tensors: `parts` of a layer are concatenated into one matrix of ours, row by row."""

    root: str
    final_norm: str
    parts: Mapping[str, tuple[str, ...]]
    norms: Mapping[str, str]


_LLAMA = _Names(
    root="model.",
    final_norm="norm",
    parts={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    },
    norms={"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
)
_OPT = _Names(
    root="model.decoder.",
    final_norm="final_layer_norm",
    parts={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.out_proj",),
        "gate_up": ("fc1",),
        "down": ("fc2",),
    },
    norms={"input_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"},
)
_QK_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


def decoder_tensors(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return the Hugging Face tensors that are concatenated into each parameter, by our names."""
    family = _OPT if config.architecture == "OPTForCausalLM" else _LLAMA
    names: dict[str, tuple[str, ...]] = {"embedding.weight": (f"{family.root}embed_tokens.weight",)}
    names |= _norm_tensors(config, "final_norm", f"{family.root}{family.final_norm}")
    if config.positions == "learned":
        names["positions.weight"] = (f"{family.root}embed_positions.weight",)
    if not config.tie_embeddings:
        names["lm_head.weight"] = ("lm_head.weight",)
    biased = _biased(config)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}", f"{family.root}layers.{layer}"
        for part, parts in family.parts.items():
            names[f"{ours}.{part}.weight"] = tuple(f"{theirs}.{name}.weight" for name in parts)
            if biased[part]:
                names[f"{ours}.{part}.bias"] = tuple(f"{theirs}.{name}.bias" for name in parts)
        for norm, name in family.norms.items():
            names |= _norm_tensors(config, f"{ours}.{norm}", f"{theirs}.{name}")
        if config.qk_norm:
            names |= {f"{ours}.{norm}": (f"{theirs}.{name}.weight",) for norm, name in _QK_NORMS.items()}
    return names


def decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter that `decoder_tensors` names."""
    hidden, heads = config.hidden_size, config.num_heads + 2 * config.num_kv_heads
    wide = (2 if config.mlp == "gated" else 1) * config.intermediate_size
    matrices = {
        "qkv": (heads * config.head_dim, hidden),
        "out": (hidden, config.num_heads * config.head_dim),
        "gate_up": (wide, hidden),
        "down": (hidden, config.intermediate_size),
        "embedding": (config.vocab_size, hidden),
        "positions": (config.max_position + LEARNED_OFFSET, hidden),
        "lm_head": (config.vocab_size, hidden),
    }

    def shape(name: str) -> tuple[int, ...]:
        owner, _, kind = name.rpartition(".")
        part = owner.rpartition(".")[2]
        if part in matrices:
            return matrices[part] if kind == "weight" else matrices[part][:1]
        return (config.head_dim if kind in _QK_NORMS else hidden,)

    return {name: shape(name) for name in decoder_tensors(config)}


def _biased(config: ModelConfig) -> dict[str, bool]:
    return {
        "qkv": config.attention_bias,
        "out": config.attention_out_bias,
        "gate_up": config.mlp_bias,
        "down": config.mlp_bias,
    }


def _norm_tensors(config: ModelConfig, ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {ours: (f"{theirs}.weight",)}
    return names | {f"{ours}_bias": (f"{theirs}.bias",)} if config.norm == "layer" else names
