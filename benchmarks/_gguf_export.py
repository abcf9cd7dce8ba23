"""The default model and its draft as GGUF files that llama.cpp runs as a target and its draft model.

The draft has an output vocabulary of its own, which llama.cpp's Llama models have not: its head is written with all of
the target's rows, those that it cannot say as zeros. Their logit of zero lies below the best one's, so that it drafts
what it would draft, and pays for a head that is larger than it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from _common import EMBEDDED

from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.registry import find_drafter
from runtime.models.decoder import Decoder, load_decoder
from runtime.models.model_folder import resolve_model

Floats = npt.NDArray[np.float32]
_LAYERS = "llama.block_count"
_OWN = ("general.architecture", "general.file_type", _LAYERS)
"""Fields that the writer writes itself, or that differ."""


def write_target(source: Path, path: Path, stored: str) -> None:
    """Write the default model with its products in another form; `source` is the file that it came in."""
    decoder = _target()
    _write(source, path, stored, decoder, decoder.embedding.weight)


def write_draft(source: Path, path: Path, stored: str, name: str) -> None:
    """Write a draft model that ships for it, without what reads exit features."""
    draft = load_draft(find_drafter(name), _target(), dtype=torch.float32)
    head = torch.zeros_like(draft.decoder.embedding.weight)
    head[draft.kept_ids] = draft.decoder.lm_head.weight.detach()
    _write(source, path, stored, draft.decoder, head)


def _target() -> Decoder:
    return load_decoder(resolve_model(EMBEDDED), dtype=torch.float32)


def _write(source: Path, path: Path, stored: str, decoder: Decoder, head: torch.Tensor) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in gguf.GGUFReader(source).fields.items():
        if not name.startswith("GGUF.") and name not in _OWN:
            kinds = [*field.types, None]
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[1])
    writer.add_block_count(len(decoder.layers))
    products = gguf.GGMLQuantizationType[stored]
    for name, weight in _tensors(decoder, head):
        kind = products if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(decoder: Decoder, head: torch.Tensor) -> Iterator[tuple[str, Floats]]:
    """Yield llama.cpp's tensors; queries and keys have their rotated halves as pairs there."""
    config = decoder.config
    yield "token_embd.weight", _floats(decoder.embedding.weight)
    yield "output.weight", _floats(head)
    yield "output_norm.weight", _floats(decoder.final_norm)
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    for index, layer in enumerate(decoder.layers):
        query, key, value = layer.qkv.weight.split([count * config.head_dim for count in heads])
        gate, up = layer.gate_up.weight.chunk(2)
        named = {
            "attn_norm": layer.input_norm,
            "attn_q": _paired(query, config.num_heads),
            "attn_k": _paired(key, config.num_kv_heads),
            "attn_v": value,
            "attn_output": layer.out.weight,
            "ffn_norm": layer.mlp_norm,
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": layer.down.weight,
        }
        yield from ((f"blk.{index}.{name}.weight", _floats(weight)) for name, weight in named.items())


def _paired(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    rows, width = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def _floats(weight: torch.Tensor) -> Floats:
    return np.ascontiguousarray(weight.detach().to(torch.float32).numpy())
