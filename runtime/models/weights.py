"""Read a Hugging Face folder's safetensors into a `Decoder`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from decoding.errors import ModelError
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary

_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_NORMS = {
    "input_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}


def load_decoder(
    folder: Path, *, dtype: torch.dtype, max_position: int | None = None, with_layers: bool = True
) -> Decoder:
    """The decoder of a Hugging Face folder, weights in `dtype`, in evaluation mode without gradients.

    `with_layers=False` reads the embedding, the final norm and the output head only: what a draft shares with it.

    Raises:
        ModelError: a file is missing or truncated, a tensor is missing or has the wrong shape.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    if not with_layers:
        decoder.layers = nn.ModuleList()
    wanted = decoder_tensors(config if with_layers else replace(config, num_layers=0))
    found = read_tensors(folder, {name for names in wanted.values() for name in names})
    state = {}
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        state[ours] = torch.cat([found[name] for name in theirs]).to(dtype)
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters(remove_duplicate=False)}
    for name, tensor in state.items():
        if tuple(tensor.shape) != shapes[name]:
            theirs_text = "+".join(wanted[name])
            msg = f"{folder}: {theirs_text} has shape {tuple(tensor.shape)}, config.json asks for {shapes[name]}"
            raise ModelError(msg)
    decoder.load_state_dict(state, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, max_position or config.max_position)
    return decoder.eval().requires_grad_(requires_grad=False)


def decoder_tensors(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Our parameter name -> the Hugging Face tensors that are concatenated into it."""
    names: dict[str, tuple[str, ...]] = {
        "embedding.weight": ("model.embed_tokens.weight",),
        "final_norm": ("model.norm.weight",),
    }
    if not config.tie_embeddings:
        names["lm_head.weight"] = ("lm_head.weight",)
    biased = {
        "qkv": config.attention_bias,
        "out": config.attention_out_bias,
        "gate_up": config.mlp_bias,
        "down": config.mlp_bias,
    }
    norms = {ours: name for ours, name in _NORMS.items() if config.qk_norm or ours not in ("q_norm", "k_norm")}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for ours, parts in _FUSED.items():
            names[f"layers.{layer}.{ours}.weight"] = tuple(f"{prefix}.{part}.weight" for part in parts)
            if biased[ours]:
                names[f"layers.{layer}.{ours}.bias"] = tuple(f"{prefix}.{part}.bias" for part in parts)
        names |= {f"layers.{layer}.{ours}": (f"{prefix}.{name}",) for ours, name in norms.items()}
    return names


def read_tensors(folder: Path, names: set[str] | None = None) -> dict[str, Tensor]:
    """The named tensors (all of them without `names`) of every safetensors file of a folder.

    Raises:
        ModelError: no safetensors file, or one that is damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if names is None or name in names}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or truncated ({error}); fetch or copy it again") from error
    return tensors


def _files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        yield from (folder / shard for shard in _shards(index))
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: no *.safetensors file; other weight formats are not read")
    yield from files


def _shards(index: Path) -> list[str]:
    """The names of all files that an index spreads the tensors over."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged or truncated ({error!r}); fetch or copy it again") from error
