"""Read a Hugging Face folder's safetensors into a `Decoder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from decoding.files import parse_json
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
        ModelError: a file is missing or truncated, a tensor is missing, has the wrong shape, or numbers that are not
            finite.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    if not with_layers:
        decoder.layers = nn.ModuleList()
    wanted = decoder_tensors(config if with_layers else replace(config, num_layers=0))
    found = read_tensors(folder, {name for names in wanted.values() for name in names})
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters(remove_duplicate=False)}
    state = {}
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        parts = {name: found[name] for name in theirs}
        state[ours] = stacked(parts, shapes[ours], dtype, source=str(folder))
    decoder.load_state_dict(state, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, max_position or config.max_position)
    return decoder.eval().requires_grad_(requires_grad=False)


def stacked(parts: Mapping[str, Tensor], shape: Sequence[int], dtype: torch.dtype, *, source: str) -> Tensor:
    """Tensors by name, put together row by row, in `dtype`.

    Raises:
        ModelError: together they do not have `shape`, or one holds no numbers, or not finite ones; `source` names where
            they are from.
    """
    name = " + ".join(parts)
    wrong = next((part for part in parts.values() if part.shape[1:] != torch.Size(shape[1:]) or not part.dim()), None)
    whole = torch.cat(list(parts.values())) if wrong is None else wrong
    if tuple(whole.shape) != tuple(shape):
        found, wanted = list(whole.shape), list(shape)
        raise ModelError(f"{source}: {name} has shape {found}; config.json and the target ask for {wanted}")
    if not whole.is_floating_point():
        raise ModelFormatError(f"{source}: {name} is stored as {whole.dtype}; expected a floating-point type")
    return finite(whole.to(dtype), name, source=source)


def finite(tensor: Tensor, name: str, *, source: str) -> Tensor:
    """The tensor itself.

    One look at every number: 0.12 seconds per gigabyte of bfloat16 on one core, a tenth of what a fast disk takes.

    Raises:
        ModelFormatError: a number in it is not finite: whatever is computed with it would be nonsense.
    """
    if tensor.numel() and not all(map(isfinite, map(float, tensor.aminmax()))):
        raise ModelFormatError(f"{source}: {name} holds numbers that are not finite; fetch, copy or train it again")
    return tensor


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
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if names is None or name in names}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or truncated ({error}); fetch or copy it again") from error
    return tensors


def weight_files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a folder; raises `ModelError` where there are none, or their index is damaged."""
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
        names = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            msg = f"{strange[0]!r} is not the name of a file in the folder"
            raise ValueError(msg)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged or truncated ({error!r}); fetch or copy it again") from error
    return names
