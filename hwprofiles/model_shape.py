"""The shape of a decoder model: how many bytes and FLOPs its parts cost, before anything of it is downloaded.

Shapes are shipped as YAML next to this module, or read from any Hugging Face `config.json`. What a device makes of
bytes and FLOPs lives in `sim.derived.roofline`; weights and tensors live in `runtime`.

A model of `num_tracks` parallel tracks has that many decoders of `hidden_size` side by side, whose states meet after
every segment only (SPD, as the Mirror-SD paper's draft); its head reads the states of all tracks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from decoding.errors import ModelError, listed, mistake, unknown
from decoding.files import named_path
from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.models.hf_shape import hf_shape
from hwprofiles.weights.formats import stored_weights

_FOLDER = Path(__file__).parent / "models"
_ACTIVATION_BYTES = 2
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Count = Annotated[int, Field(ge=0, le=4096)]
Number = TypeVar("Number", float, NDArray[np.float64])
"""One context, or several at once."""


class ModelShape(StrictModel):
    """Sizes of a pre-norm decoder.

    Attributes:
        name: as its makers call it.
        source: where the sizes are from.
        num_layers, hidden_size, num_heads, num_kv_heads, head_dim: of a track, if there are several.
        intermediate_size: width of the feed-forward part; of one expert where there are experts.
        vocab_size: rows of the output head.
        kept_vocabulary: those of them that a draft computes; None for all.
        tokenizer: whose tokenizer it has, by one name for all models that share it; None where that is not known.
        tie_embeddings: whether the output head is the embedding matrix.
        max_position: longest context.
        is_gated: whether the feed-forward part has a gate, and so three matrices instead of two.
        learned_positions: rows of a table of positions; 0 for rotary ones.
        num_experts, experts_per_token: of a mixture; 0 for a dense model.
        num_tracks, num_segments: parallel decoders, and how often their states meet in a pass.
    """

    name: str
    source: str
    num_layers: Annotated[int, Field(ge=1, le=4096)]
    hidden_size: Size
    intermediate_size: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    vocab_size: Size
    tie_embeddings: bool
    kept_vocabulary: Size | None = None
    max_position: Size
    is_gated: bool = True
    learned_positions: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    num_experts: Count = 0
    experts_per_token: Count = 0
    tokenizer: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    num_tracks: Annotated[int, Field(ge=1, le=64)] = 1
    num_segments: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            msg = f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            raise ValueError(msg)
        if bool(self.num_experts) != bool(self.experts_per_token) or self.experts_per_token > self.num_experts:
            msg = f"experts_per_token is {self.experts_per_token} of {self.num_experts} experts"
            raise ValueError(msg)
        return self

    @property
    def width(self) -> int:
        """Elements of a position's state, over all tracks."""
        return self.hidden_size * self.num_tracks

    @property
    def attention_parameters(self) -> int:
        """Matrices of a layer's attention: queries and output, keys and values."""
        return self.num_tracks * 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Matrices of a layer's feed-forward part, or of one of its experts."""
        return self.num_tracks * (3 if self.is_gated else 2) * self.hidden_size * self.intermediate_size

    @property
    def layer_parameters(self) -> int:
        """All matrices of a layer; norms and biases are left out."""
        router = self.hidden_size * self.num_experts
        return self.attention_parameters + router + max(1, self.num_experts) * self.expert_parameters

    @property
    def head_parameters(self) -> int:
        """The output head, tied or not."""
        return self.vocab_size * self.width

    @property
    def num_parameters(self) -> int:
        """All of the model's matrices."""
        embeddings = (1 if self.tie_embeddings else 2) * self.head_parameters + self.learned_positions * self.width
        return self.num_layers * self.layer_parameters + embeddings

    def experts_touched(self, rows: float) -> float:
        """Experts of a layer that at least one of `rows` tokens is sent to, in expectation; 1 for a dense model.

        Tokens choose on their own and evenly: E (1 - (1 - k / E)^rows). Real routers are less even, and then fewer are
        touched.
        """
        if not self.num_experts:
            return 1.0
        missed: float = (1 - self.experts_per_token / self.num_experts) ** rows
        return self.num_experts * (1 - missed)

    def layer_weight_bytes(self, weights: str, rows: float = 1) -> float:
        """Return bytes of weights that one layer reads for a pass of `rows` tokens."""
        return self._layer_bytes(weights, self.experts_touched(rows))

    def _layer_bytes(self, weights: str, num_experts: float) -> float:
        """Bytes of a layer's matrices with so many of its experts; 1 for a dense model."""
        form = stored_weights(weights)
        dense_bits = (form.dense_bits if self.num_experts else None) or form.bits
        dense = self.layer_parameters - max(1, self.num_experts) * self.expert_parameters
        return (dense * dense_bits + num_experts * self.expert_parameters * form.bits) / 8

    def layer_flops(self, rows: float, context: Number) -> Number:
        """FLOPs of one layer over `rows` tokens that attend to `context` cached ones and to each other."""
        matrices = self.layer_parameters - (max(1, self.num_experts) - max(1, self.experts_per_token)) * (
            self.expert_parameters
        )
        keys = context + (rows + 1) / 2
        return rows * (2 * matrices + 4 * self.num_tracks * self.num_heads * self.head_dim * keys)

    def layer_activation_bytes(self, rows: float) -> float:
        """Return bytes of states between a layer's matrices, each written once and read once."""
        attention = 2 * self.hidden_size + 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        feed_forward = 2 * self.hidden_size + (3 if self.is_gated else 2) * self.intermediate_size * max(
            1, self.experts_per_token
        )
        return 2 * rows * self.num_tracks * (attention + feed_forward) * _ACTIVATION_BYTES

    def kv_bytes_per_token(self, *, of_layers: int | None = None) -> float:
        """Keys and values of one token, of all layers or of so many."""
        per_layer = 2 * self.num_tracks * self.num_kv_heads * self.head_dim * _ACTIVATION_BYTES
        return float(per_layer * (self.num_layers if of_layers is None else of_layers))

    def head_bytes(self, weights: str) -> float:
        """Return bytes of the output head, or of the rows of a reduced vocabulary."""
        return (self.kept_vocabulary or self.vocab_size) * self.width * stored_weights(weights).head_bits / 8

    def head_flops(self, rows: float) -> float:
        """FLOPs of the output head over `rows` tokens."""
        return 2 * rows * (self.kept_vocabulary or self.vocab_size) * self.width

    def weight_bytes(self, weights: str) -> float:
        """Return what the model occupies in memory, embeddings and all experts included; keys and values are extra."""
        layers = self.num_layers * self._layer_bytes(weights, max(1, self.num_experts))
        tables = self.num_parameters - self.num_layers * self.layer_parameters - self.head_parameters
        return layers + self.head_bytes(weights) + tables * stored_weights(weights).embedding_bits / 8


def shipped_models() -> tuple[str, ...]:
    """Return ids of the shapes that are shipped."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def model_shape(name: str | Path) -> ModelShape:
    """The shape of a model: a shipped id, a shape's YAML, a Hugging Face `config.json`, or a folder that holds one.

    Raises:
        ModelError: there is none of that name; lists those there are. Or the config is of a kind that has other parts.
        ConfigError: a YAML or JSON file is wrong; names file, line and value.
    """
    path = named_path(name)
    if str(name).lower() in shipped_models():
        return load_yaml(_FOLDER / f"{str(name).lower()}.yaml", ModelShape)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        msg = (
            f"{unknown('model shape', str(name), shipped_models())}. "
            "Or name a Hugging Face config.json, or a folder that holds one"
        )
        raise ModelError(msg)
    if path.suffix == ".json":
        return shape_from_hf(load_yaml(path, dict[str, Any]), source=str(path))
    return load_yaml(path, ModelShape)


def shape_from_hf(raw: dict[str, Any], *, source: str = "config.json") -> ModelShape:
    """Return the shape that a Hugging Face config describes; of one with several parts that of its text model.

    Raises:
        ModelError: it lacks a size, a field has another type, or it has parts that a shape does not know.
    """
    found = hf_shape(raw, source=source)
    hidden, heads, positions = found.hidden_size, found.num_attention_heads, found.max_position_embeddings
    is_opt = found.ffn_dim is not None
    experts = found.num_experts or found.num_local_experts or 0
    sizes = {
        "name": found.name or Path(source).parent.name or source,
        "source": source,
        "tokenizer": found.tokenizer,
        "num_layers": found.num_hidden_layers,
        "hidden_size": hidden,
        "intermediate_size": (found.moe_intermediate_size if experts else None)
        or found.ffn_dim
        or found.intermediate_size,
        "num_heads": heads,
        "num_kv_heads": found.num_key_value_heads or heads,
        "head_dim": found.head_dim or (hidden // heads if hidden and heads else None),
        "vocab_size": found.vocab_size,
        "kept_vocabulary": found.draft_vocab_size or None,
        "tie_embeddings": is_opt if found.tie_word_embeddings is None else found.tie_word_embeddings,
        "max_position": positions,
        "is_gated": not is_opt,
        "learned_positions": (positions or 0) + 2 if is_opt else 0,
        "num_experts": experts,
        "experts_per_token": (found.num_experts_per_tok or 0) if experts else 0,
    }
    try:
        return ModelShape.model_validate(sizes)
    except ValidationError as error:
        mistakes = [f"{source}: {mistake(item)}" for item in error.errors(include_url=False)]
        raise ModelError(listed(mistakes)) from error
