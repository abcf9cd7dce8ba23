"""Read a Hugging Face folder's safetensors into a `Decoder`.

Files are mapped, and what can be used as it is on disk stays there: it takes no memory of the process, and lanes that
load the same model share it. That holds for tensors of the dtype asked for whose file is aligned (`_ALIGNMENT`), one by
one, or where they follow each other on disk as they do in one matrix of ours: gate and up of an MLP mostly; queries,
keys and values seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from decoding.files import parse_json
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary
from runtime.models.random_weights import fill_at_random
from runtime.storage.shape_folder import PREFIX

_ALIGNMENT: Final = 64
"""Bytes: products with a bfloat16 matrix that starts elsewhere took a fifth longer on a CPU with AVX-512."""


class _Names(NamedTuple):
    """What a family calls its tensors: `parts` of a layer go into one matrix of ours, row by row."""

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


def load_decoder(
    folder: Path,
    *,
    dtype: torch.dtype,
    max_position: int | None = None,
    with_layers: bool = True,
    shares_random: bool = False,
) -> Decoder:
    """The decoder of a Hugging Face folder, weights in `dtype`, in evaluation mode without gradients.

    Of a folder that asks for random weights they are made here (`runtime.models.random_weights`); `shares_random`
    leaves them in shared memory, for who brings them into another form before computing.

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
    if config.random_seed is None:
        wanted = decoder_tensors(config if with_layers else replace(config, num_layers=0))
        found = read_tensors(folder, {name for names in wanted.values() for name in names})
        fill(decoder, wanted, found, dtype, folder=folder)
    else:
        fill_at_random(decoder, config.random_seed, dtype, is_shared=shares_random)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, max_position or config.max_position)
    return decoder.eval().requires_grad_(requires_grad=False)


def fill(
    decoder: nn.Module,
    wanted: Mapping[str, tuple[str, ...]],
    found: Mapping[str, Tensor],
    dtype: torch.dtype,
    *,
    folder: Path,
    device: str = "cpu",
) -> None:
    """Give a decoder on the meta device its weights.

    Args:
        decoder: whole, or one rank's share.
        wanted: for each of its parameters the tensors that go into it, in their order.
        found: those tensors, by name.
        dtype: of the weights.
        folder: where they are from.
        device: where the weights are wanted.

    Raises:
        ModelError: a tensor is missing, or as in `stacked`.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters(remove_duplicate=False)}
    state = {}
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        parts = {name: found[name] for name in theirs}
        state[ours] = stacked(parts, shapes[ours], dtype, source=str(folder)).to(device)
    decoder.load_state_dict(state, strict=False, assign=True)


def stacked(parts: Mapping[str, Tensor], shape: Sequence[int], dtype: torch.dtype, *, source: str) -> Tensor:
    """Tensors by name, put together row by row, in `dtype`.

    Raises:
        ModelError: together they do not have `shape`, or one holds no numbers, or not finite ones; `source` names where
            they are from.
    """
    name = " + ".join(parts)
    wrong = next((part for part in parts.values() if part.shape[1:] != torch.Size(shape[1:]) or not part.dim()), None)
    whole = _joined(list(parts.values())) if wrong is None else wrong
    if tuple(whole.shape) != tuple(shape):
        found, wanted = list(whole.shape), list(shape)
        raise ModelError(f"{source}: {name} has shape {found}; config.json and the target ask for {wanted}")
    if not whole.is_floating_point():
        raise ModelFormatError(f"{source}: {name} is stored as {whole.dtype}; expected a floating-point type")
    return finite(_aligned(whole.to(dtype)), name, source=source)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors row by row; where they follow each other in memory, that memory itself."""
    first = parts[0]
    starts = accumulate((part.nbytes for part in parts[:-1]), initial=first.data_ptr())
    for part, start in zip(parts, starts, strict=True):
        same_file = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same_file and part.data_ptr() == start and part.dtype == first.dtype and part.is_contiguous()):
            return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where products with it would be slow."""
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 or tensor.dim() < 2 else tensor.clone()


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
    family = _OPT if config.architecture == "OPTForCausalLM" else _LLAMA
    names: dict[str, tuple[str, ...]] = {"embedding.weight": (f"{family.root}embed_tokens.weight",)}
    names |= _norm_tensors(config, "final_norm", f"{family.root}{family.final_norm}")
    if config.positions == "learned":
        names["positions.weight"] = (f"{family.root}embed_positions.weight",)
    if not config.tie_embeddings:
        names["lm_head.weight"] = ("lm_head.weight",)
    biased = {
        "qkv": config.attention_bias,
        "out": config.attention_out_bias,
        "gate_up": config.mlp_bias,
        "down": config.mlp_bias,
    }
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


def _norm_tensors(config: ModelConfig, ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {ours: (f"{theirs}.weight",)}
    return names | {f"{ours}_bias": (f"{theirs}.bias",)} if config.norm == "layer" else names


def read_tensors(folder: Path, names: set[str] | None = None) -> dict[str, Tensor]:
    """The named tensors (all of them without `names`) of every safetensors file of a folder.

    Raises:
        ModelError: no safetensors file, or one that is damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors |= _mapped(path, names)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or truncated ({error}); fetch or copy it again") from error
    return tensors


def _mapped(path: Path, names: set[str] | None) -> dict[str, Tensor]:
    """Tensors of a file as parts of one mapping of it, so that those that follow each other can be joined.

    Raises:
        SafetensorError: the file is damaged.
    """
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys() if names is None or name in names}  # noqa: SIM118
    memory = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    header_size = int.from_bytes(bytes(memory[:8].tolist()), "little")
    header = parse_json(bytes(memory[8 : 8 + header_size].tolist()))

    def mapped(name: str, tensor: Tensor) -> Tensor:
        start, stop = (8 + header_size + offset for offset in header[name]["data_offsets"])
        is_whole = start % tensor.element_size() == 0 and stop - start == tensor.nbytes
        return memory[start:stop].view(tensor.dtype).view(tensor.shape) if is_whole else tensor

    return {name: mapped(name, tensor) if tensor.numel() else tensor for name, tensor in found.items()}


def weight_files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a folder; raises `ModelError` where there are none, or their index is damaged."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        yield from (folder / shard for shard in _shards(index))
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder}: no *.safetensors file; other weight formats are not read. To time a model of this shape with "
            f"random weights, name {PREFIX}{folder}"
        )
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
