"""Models that are measured on a GPU: shapes that ship, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch

from runtime.arrays import as_tensors, numpy_type
from runtime.backends.backend import Preparation, segments_between
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import CapturedCall
from runtime.models.config import ModelConfig, decoder_shapes
from runtime.models.decoder import Decoder, Rotary
from runtime.storage.stored_decoder import random_arrays

MODELS: Final = Path(__file__).parents[2] / "hwprofiles" / "models"
TARGETS: Final = ("qwen3-14b", "qwen3-32b", "opt-66b")
DRAFT: Final = "qwen3-0.6b"


def read_shape(name: str) -> dict[str, Any]:
    """A shape's file, whose lines are `name: value`: a bare machine has no reader of YAML."""
    lines = (MODELS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines if ": " in line and not line.startswith(("#", " ")))
    return {
        key: json.loads(value) if value[0].isdigit() or value in {"true", "false"} else value for key, value in pairs
    }


def config_of(name: str, *, shrink: int = 1, num_layers: int | None = None) -> ModelConfig:
    """A model's shape as a decoder has it; its sizes divided by `shrink` to be tiny, but for those of a head."""
    shape = read_shape(name)
    is_opt = "learned_positions" in shape
    num_kv = max(1, shape["num_kv_heads"] // shrink)
    family: dict[str, Any] = {"architecture": "Qwen3ForCausalLM", "qk_norm": True}
    if is_opt:
        biases = dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias"), True)
        family = {"architecture": "OPTForCausalLM", "positions": "learned", "norm": "layer", "mlp": "relu", **biases}
    return ModelConfig(
        vocab_size=max(64, shape["vocab_size"] // shrink),
        num_layers=min(shape["num_layers"], num_layers or shape["num_layers"]),
        hidden_size=max(8, shape["hidden_size"] // shrink),
        intermediate_size=max(8, shape["intermediate_size"] // shrink),
        num_heads=num_kv * (shape["num_heads"] // shape["num_kv_heads"]),
        num_kv_heads=num_kv,
        head_dim=max(4, shape["head_dim"] // shrink),
        max_position=shape["max_position"],
        rope_theta=0.0 if is_opt else 1e6,
        norm_eps=1e-6,
        tie_embeddings=shape["tie_embeddings"],
        **family,
    )


def random_decoder(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder of random weights."""
    with torch.device("meta"):
        decoder = Decoder(config)
    arrays = random_arrays(decoder_shapes(config), 0, numpy_type(dtype))
    state = {name: as_tensors({name: array})[name].to(device) for name, array in arrays.items()}
    decoder.load_state_dict(state, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config).to(device)
    return decoder.eval().requires_grad_(requires_grad=False)


def prepared_text(backend: CudaBackend, rows: int, context: int) -> tuple[Any, CapturedCall]:
    """A random text, and the call of all layers over rows after it."""
    layers = backend.config.num_layers
    text = backend.new_text()
    backend.prepare(
        Preparation(
            num_slots=context + rows,
            num_prompt=0,
            rows=(rows,),
            segments=segments_between(layers),
            prompt_segments=(),
            least_slots=context,
        )
    )
    text.start(context + rows)
    text.fill_random(context)
    x_BTD = backend.embedding(torch.zeros(1, rows, dtype=torch.long))
    before = set(text.memory.calls)
    backend.run_layers(x_BTD, 0, layers, positions=torch.arange(context, context + rows), cache=text)
    assert set(text.memory.calls) == before, "a call that was not prepared"
    shape = min(text.memory.calls, key=lambda one: one.num_slots)
    return text, text.memory.calls[shape]
