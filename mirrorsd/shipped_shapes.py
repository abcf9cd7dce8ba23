"""Models with random weights by the names of the shapes that ship: `shape:qwen3-8b`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from decoding.errors import ModelError
from decoding.files import named_path

if TYPE_CHECKING:
    from hwprofiles.model_shape import ModelShape

_FAMILIES: Final = {
    "Qwen3": "Qwen3ForCausalLM",
    "Qwen2": "Qwen2ForCausalLM",
    "Mistral": "MistralForCausalLM",
    "OPT": "OPTForCausalLM",
}
"""Architectures by the beginnings of models' names; any other is a Llama."""


def is_shipped_shape(name: str) -> bool:
    """Whether a model's name is `shape:` and a shape that ships, and no path of the user's."""
    from hwprofiles.model_shape import shipped_models
    from runtime.storage.shape_folder import PREFIX, is_shape_name

    own = name.removeprefix(PREFIX)
    return is_shape_name(name) and own.lower() in shipped_models() and not named_path(own).exists()


def shipped_shape_folder(name: str) -> Path:
    """The folder of a model with random weights and a shape that ships.

    Raises:
        ModelError: the shape has parts that no decoder here has, or the folder cannot be written.
    """
    from hwprofiles.model_shape import model_shape
    from runtime.storage.shape_folder import PREFIX, save_shape

    own = name.removeprefix(PREFIX).lower()
    return save_shape(_as_config(model_shape(own), name), own, source=name)


def _as_config(shape: ModelShape, name: str) -> dict[str, Any]:
    """A config.json of that shape; raises `ModelError` for experts, several kinds of layers and parallel tracks."""
    if not shape.is_uniform or shape.num_tracks > 1:
        named = {"experts": shape.num_experts, "layers of several kinds": shape.num_tracks == 1}
        parts = next((name for name, has in named.items() if has), "parallel tracks")
        raise ModelError(f"{name}: a shape with {parts} is simulated, but no model of it runs here")
    family = next((own for start, own in _FAMILIES.items() if shape.name.startswith(start)), "LlamaForCausalLM")
    own = {"ffn_dim": shape.intermediate_size} if family == "OPTForCausalLM" else _of_a_llama(shape)
    return {
        "architectures": [family],
        "vocab_size": shape.vocab_size,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": shape.tie_embeddings,
        **own,
    }


def _of_a_llama(shape: ModelShape) -> dict[str, Any]:
    return {
        "intermediate_size": shape.intermediate_size,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": 1e-6,
    }
