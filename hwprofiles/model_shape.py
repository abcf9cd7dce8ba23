"""The shape of a decoder model, and the bytes and FLOPs of its parts; nothing is downloaded for it.

Shapes ship as YAML, or are read from any Hugging Face `config.json`. A model of `num_tracks` parallel tracks has that
many decoders of `hidden_size` side by side, whose states meet after each segment only (SPD, as the Mirror-SD paper's
draft); its head reads the states of all tracks.
"""

from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from decoding.errors import ModelError, unknown
from decoding.files import named_path
from decoding.validation import Many, validated
from decoding.yaml_file import load_yaml
from hwprofiles.models.hf_shape import shape_fields
from hwprofiles.models.layer_kinds import (
    ELEMENT_BYTES,
    Count,
    Heads,
    LatentAttention,
    LinearAttention,
    Mixer,
    Number,
    Size,
    SlidingAttention,
)
from hwprofiles.models.model_names import named_shape
from hwprofiles.weights.formats import WeightFormat, stored_weights

_FOLDER = Path(__file__).parent / "models"
_Width = Annotated[int, Field(ge=0, le=1 << 24)]


class ModelShape(Heads):
    """Sizes of a pre-norm decoder. Where layers differ, numbers of a layer are the mean of all.

    Attributes:
        num_layers, hidden_size, num_heads, num_kv_heads, head_dim: of one track; heads are those of full attention.
        intermediate_size: width of the feed-forward part, or of one expert.
        vocab_size, kept_vocabulary: rows of the `lm_head`, and those that a draft computes (None: all).
        tokenizer: one name for all models that share a tokenizer; None where it is not known.
        tie_embeddings: whether the `lm_head` is the embedding matrix, or there is no other table.
        borrows_lm_head: whether the `lm_head` is another model's: read, but not held.
        max_position: longest context.
        is_gated: whether the feed-forward part has a gate, and so three matrices instead of two.
        learned_positions: rows of a table of positions; 0 for rotary ones.
        num_experts, experts_per_token: of a mixture; 0 for a dense model.
        expert_hidden_size: width of compressed states that experts work on; 0 if they are not compressed.
        shared_intermediate_size: width of all experts that every token is sent to.
        dense_layers, dense_intermediate_size: layers of a mixture without experts, and their width.
        sliding, linear: layers with other attention than full.
        latent: full attention with compressed keys and values.
        mixers: all kinds of layers, where none of these describes them.
        mtp_layers: the model's own heads that draft; no part of plain decoding.
        num_tracks, num_segments: parallel decoders, and how often their states meet in a pass.
        published_in: format of the weights that its makers publish.
    """

    name: str
    source: str
    num_layers: Annotated[int, Field(ge=1, le=4096)]
    hidden_size: Size
    intermediate_size: Size
    vocab_size: Size
    tie_embeddings: bool
    borrows_lm_head: bool = False
    kept_vocabulary: Size | None = None
    max_position: Size
    is_gated: bool = True
    learned_positions: _Width = 0
    num_experts: Count = 0
    experts_per_token: Count = 0
    expert_hidden_size: _Width = 0
    shared_intermediate_size: _Width = 0
    dense_layers: Count = 0
    dense_intermediate_size: _Width = 0
    sliding: SlidingAttention | None = None
    linear: LinearAttention | None = None
    latent: LatentAttention | None = None
    mixers: Many[Mixer] = ()
    mtp_layers: Count = 0
    tokenizer: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    num_tracks: Annotated[int, Field(ge=1, le=64)] = 1
    num_segments: Annotated[int, Field(ge=1, le=64)] = 1
    published_in: WeightFormat = "bf16"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if bool(self.num_experts) != bool(self.experts_per_token) or self.experts_per_token > self.num_experts:
            raise ValueError(f"experts_per_token is {self.experts_per_token} of {self.num_experts} experts")
        dense, wide = self.dense_layers, self.dense_intermediate_size
        if dense > self.num_layers or bool(dense) != bool(wide):
            raise ValueError(f"dense_layers is {dense} of {self.num_layers}, {wide} wide")
        named = [one.num_layers for one in (*self.mixers, self.sliding, self.linear) if one is not None]
        if sum(named) > self.num_layers or (self.mixers and sum(named) != self.num_layers):
            several = " + ".join(map(str, named))
            raise ValueError(f"{several} layers of several kinds are not the {self.num_layers} there are")
        num_full, indexed = self.num_layers - sum(named), self.latent.num_index_layers if self.latent else 0
        if indexed > num_full:
            raise ValueError(f"latent.num_index_layers is {indexed} of {num_full} layers with full attention")
        return self

    @cached_property
    def layer_kinds(self) -> tuple[Mixer, ...]:
        """All kinds of layers, by how they mix tokens."""
        kinds = [*self.mixers]
        if self.sliding is not None:
            kinds.append(self.sliding.mixer(self.sliding.num_layers, self.hidden_size, window=self.sliding.window))
        if self.linear is not None:
            kinds.append(self.linear.mixer(self.hidden_size))
        num_full = self.num_layers - sum(kind.num_layers for kind in kinds)
        if num_full and self.latent is not None:
            kinds.append(self.latent.mixer(num_full, self.hidden_size, self.num_heads))
        elif num_full:
            kinds.append(self.mixer(num_full, self.hidden_size, num_tracks=self.num_tracks))
        return tuple(kinds)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers are dense and have full attention, as those of models that run here."""
        return not (self.num_experts or self.sliding or self.linear or self.latent or self.mixers)

    @property
    def expert_share(self) -> float:
        """Share of the layers with experts; 1 for a dense model, whose feed-forward part counts as one expert."""
        return 1 - self.dense_layers / self.num_layers

    @property
    def width(self) -> int:
        """Elements of a position's state, over all tracks."""
        return self.hidden_size * self.num_tracks

    @property
    def attention_parameters(self) -> float:
        """Parameters of a layer's attention: queries and output, keys and values."""
        return sum(kind.num_layers * kind.parameters for kind in self.layer_kinds) / self.num_layers

    @property
    def expert_parameters(self) -> int:
        """Parameters of a layer's feed-forward part, or of one of its experts."""
        return self._feed_forward(self.expert_hidden_size or self.hidden_size, self.intermediate_size)

    @property
    def read_parameters(self) -> float:
        """Parameters of a layer that every pass reads: all but the experts, of which a dense model has one."""
        hidden, share = self.hidden_size, self.expert_share
        router = hidden * self.num_experts + 2 * hidden * self.expert_hidden_size
        shared = self._feed_forward(hidden, self.shared_intermediate_size)
        dense = self._feed_forward(hidden, self.dense_intermediate_size)
        return self.attention_parameters + share * (router + shared) + (1 - share) * dense

    @property
    def layer_parameters(self) -> float:
        """Parameters of a layer, without norms and biases."""
        return self.read_parameters + self.expert_share * max(1, self.num_experts) * self.expert_parameters

    def _feed_forward(self, width: int, intermediate_size: int) -> int:
        return self.num_tracks * (3 if self.is_gated else 2) * width * intermediate_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the `lm_head`, tied or not."""
        return self.vocab_size * self.width

    @property
    def num_parameters(self) -> float:
        """Parameters of the model, without norms and biases."""
        head = 0 if self.borrows_lm_head else self.head_parameters
        return self.num_layers * self.layer_parameters + head + self._table_parameters

    @property
    def _table_parameters(self) -> int:
        return (0 if self.tie_embeddings else self.head_parameters) + self.learned_positions * self.width

    def experts_touched(self, rows: float) -> float:
        """Return the expected experts of a layer that at least one of `rows` tokens is sent to; 1 for a dense model.

        Tokens choose independently and evenly: E (1 - (1 - k / E)^rows). Uneven routers touch fewer.
        """
        if not self.num_experts:
            return 1.0
        missed: float = (1 - self.experts_per_token / self.num_experts) ** rows
        return self.num_experts * (1 - missed)

    def layer_weight_bytes(self, weights: str, rows: float = 1) -> float:
        """Return bytes of weights that one layer reads in a pass over `rows` tokens."""
        return self._layer_bytes(weights, self.experts_touched(rows))

    def expert_bytes(self, weights: str, rows: float = inf) -> float:
        """Return what `layer_weight_bytes` has of experts, by default of all; 0 for a dense model."""
        return self._expert_bytes(weights, self.experts_touched(rows)) if self.num_experts else 0.0

    def _layer_bytes(self, weights: str, num_experts: float) -> float:
        """Return bytes of a layer's parameters with so many of its experts; 1 for a dense model."""
        form = stored_weights(weights)
        dense_bits = (form.dense_bits if self.num_experts else None) or form.bits
        return self.read_parameters * dense_bits / 8 + self._expert_bytes(weights, num_experts)

    def _expert_bytes(self, weights: str, num_experts: float) -> float:
        return self.expert_share * num_experts * self.expert_parameters * stored_weights(weights).bits / 8

    def layer_flops(self, rows: float, context: Number, *, is_prompt: bool = False) -> Number:
        """Return FLOPs of one layer over `rows` tokens that attend to `context` cached ones and to each other."""
        return self.matrix_flops(rows) + self.mixing_flops(rows, context, is_prompt=is_prompt)

    def matrix_flops(self, rows: float) -> float:
        """Return FLOPs of one layer's matrices over `rows` tokens."""
        experts = self.expert_share * max(1, self.experts_per_token) * self.expert_parameters
        return rows * 2 * (self.read_parameters + experts)

    def mixing_flops(self, rows: float, context: Number, *, is_prompt: bool = False) -> Number:
        """Return FLOPs by which one layer mixes `rows` tokens of a sequence with each other and with cached ones."""
        total: Any = sum(kind.num_layers * kind.flops(rows, context, is_prompt=is_prompt) for kind in self.layer_kinds)
        mixing: Number = total / self.num_layers
        return mixing

    def layer_activation_bytes(self, rows: float) -> float:
        """Return bytes of states between a layer's matrices, each written once and read once."""
        attention = 2 * self.hidden_size + 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        feed_forward = 2 * self.hidden_size + (3 if self.is_gated else 2) * self.intermediate_size * max(
            1, self.experts_per_token
        )
        return 2 * rows * self.num_tracks * (attention + feed_forward) * ELEMENT_BYTES

    def kv_bytes(self, num_tokens: float, cache_bits: float = 16, num_devices: int = 1) -> float:
        """Return a sequence's cached bytes on each of some devices: keys and values of so many bits, and states.

        Engines share out heads of keys and values among the devices of a group. More devices than heads hold copies, as
        all do of compressed keys and values, which have no heads (vLLM's and SGLang's tensor parallelism).
        """
        kinds = self.layer_kinds
        return float(sum(kind.num_layers * kind.kept_bytes(num_tokens, cache_bits, num_devices) for kind in kinds))

    def layer_kv_bytes(
        self, rows: float, context: Number, cache_bits: float = 16, num_devices: int = 1, *, is_prompt: bool = False
    ) -> Number:
        """Return the bytes that each of some devices reads of a layer's cache, and writes for `rows` new tokens.

        A state is read once. It is written for every row, so that engines can go back to the last accepted one
        (vllm-project/vllm#49887, TheTom/llama-cpp-turboquant#331); of a prompt only the last is.
        """
        num_states = 1 if is_prompt else rows
        total: Any = sum(
            kind.num_layers
            * kind.moved_bytes(rows, context, cache_bits, num_states=num_states, num_devices=num_devices)
            for kind in self.layer_kinds
        )
        moved: Number = total / self.num_layers
        return moved

    def head_bytes(self, weights: str) -> float:
        """Return bytes of the `lm_head`, or of the rows of a reduced vocabulary."""
        return (self.kept_vocabulary or self.vocab_size) * self.width * stored_weights(weights).head_bits / 8

    def head_flops(self, rows: float) -> float:
        """Return FLOPs of the `lm_head` over `rows` tokens."""
        return 2 * rows * (self.kept_vocabulary or self.vocab_size) * self.width

    def weight_bytes(self, weights: str) -> float:
        """Return the model's bytes in memory, with embeddings and all experts, without keys and values."""
        layers = self.num_layers * self._layer_bytes(weights, max(1, self.num_experts))
        head = 0.0 if self.borrows_lm_head else self.head_bytes(weights)
        return layers + head + self.table_bytes(weights)

    def table_bytes(self, weights: str) -> float:
        """Return bytes of embeddings that are no `lm_head` too."""
        return self._table_parameters * stored_weights(weights).embedding_bits / 8


def shipped_models() -> tuple[str, ...]:
    """Return ids of the shapes that are shipped."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def model_shape(name: str | Path) -> ModelShape:
    """Return a shape: a shipped one by any of its names, or that of a YAML, a `config.json`, or a folder with one.

    Raises:
        ModelError: there is none of that name; lists those there are. Or the config has parts that a shape lacks.
        ConfigError: a YAML or JSON file is wrong; names file, line and value.
    """
    path = named_path(name)
    if str(name).lower() in shipped_models():
        return load_yaml(_FOLDER / f"{str(name).lower()}.yaml", ModelShape)
    if path.is_dir() and str(name):
        path /= "config.json"
    if not path.is_file() and (known := named_shape(str(name), shipped_models())) is not None:
        shape = load_yaml(_FOLDER / f"{known.shape}.yaml", ModelShape)
        own = {"max_position": known.max_position, "published_in": known.published_in}
        return shape.model_copy(update={field: value for field, value in own.items() if value is not None})
    if not path.is_file():
        msg = f"{unknown('model shape', str(name), shipped_models())} (A config.json, or its folder, will do.)"
        raise ModelError(msg)
    if path.suffix == ".json":
        return shape_from_hf(load_yaml(path, dict[str, Any]), source=str(path))
    return load_yaml(path, ModelShape)


def shape_from_hf(raw: dict[str, Any], *, source: str = "config.json") -> ModelShape:
    """Return the shape of a Hugging Face config, or of the text model in it; `ModelError` where it describes none."""
    return validated(ModelShape, shape_fields(raw, source=source), ModelError, source=source)
