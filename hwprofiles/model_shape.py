"""The shape of a decoder model, and the bytes and FLOPs of its parts; nothing is downloaded.

Shapes ship as YAML, or are read from a Hugging Face `config.json`. A model with `num_tracks` > 1 runs that many
decoders of `hidden_size` in parallel and synchronises their states only once per segment of layers (SPD, as the
Mirror-SD paper's draft); its `lm_head` reads the states of all tracks.
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
    """Sizes of a pre-norm decoder. Where layers differ, per-layer results are means over all layers.

    Attributes:
        num_layers, hidden_size, num_heads, num_kv_heads, head_dim: of one track; heads are those of full attention.
        intermediate_size: width of the feed-forward part, or of one expert.
        vocab_size, kept_vocabulary: rows of the `lm_head`, and the rows that a draft computes (None: all).
        tokenizer: the same name for all models that share a tokenizer; None if not known.
        tie_embeddings: whether the `lm_head` is the embedding matrix, or the model holds no embedding matrix.
        borrows_lm_head: whether the `lm_head` is the target's: read in each pass, but not held again.
        max_position: longest context.
        is_gated: whether the feed-forward part has a gate, hence three matrices instead of two.
        learned_positions: rows of a table of learned positions; 0 for rotary positions.
        num_experts, experts_per_token: of a mixture of experts; 0 for a dense model.
        expert_hidden_size: width of the compressed states that experts read; 0 if states are not compressed.
        shared_intermediate_size: total width of the experts that every token is sent to.
        dense_layers, dense_intermediate_size: number and width of a mixture's layers without experts.
        sliding, linear: layers with sliding-window or linear attention.
        latent: compressed keys and values (MLA) of the full-attention layers.
        mixers: all kinds of layers, if the fields above cannot describe them.
        mtp_layers: layers for multi-token prediction; plain decoding does not run them.
        num_tracks, num_segments: parallel decoders, and how often a pass synchronises their states.
        published_in: format of the published weights.
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
        """All kinds of layers: for each, the cost of mixing tokens and its number of layers."""
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
        """Whether all layers are dense with full attention, as in all models that `runtime` can run."""
        return not (self.num_experts or self.sliding or self.linear or self.latent or self.mixers)

    @property
    def linear_share(self) -> float:
        """Share of layers with linear attention."""
        return sum(kind.num_layers for kind in self.layer_kinds if kind.state_bytes) / self.num_layers

    @property
    def expert_share(self) -> float:
        """Share of layers that have experts; 1 for a dense model, whose feed-forward part counts as one expert."""
        return 1 - self.dense_layers / self.num_layers

    @property
    def width(self) -> int:
        """Elements of the hidden state of one position, over all tracks."""
        return self.hidden_size * self.num_tracks

    @property
    def attention_parameters(self) -> float:
        """Parameters of a layer's attention: query, key, value and output projections."""
        return sum(kind.num_layers * kind.parameters for kind in self.layer_kinds) / self.num_layers

    @property
    def expert_parameters(self) -> int:
        """Parameters of a layer's feed-forward part, or of one of its experts."""
        return self._feed_forward(self.expert_hidden_size or self.hidden_size, self.intermediate_size)

    @property
    def read_parameters(self) -> float:
        """Parameters of a layer that every pass reads: all but the routed experts (a dense model counts as one)."""
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
        """Return the expected number of a layer's experts that `rows` tokens use together; 1 for a dense model.

        Assumes that tokens choose k of E experts independently and uniformly: E (1 - (1 - k / E)^rows). Uneven routers
        use fewer.
        """
        if not self.num_experts:
            return 1.0
        missed: float = (1 - self.experts_per_token / self.num_experts) ** rows
        return self.num_experts * (1 - missed)

    def layer_weight_bytes(self, weights: str, rows: float = 1) -> float:
        """Return bytes of weights that one layer reads in a pass over `rows` tokens."""
        return self._layer_bytes(weights, self.experts_touched(rows))

    def expert_bytes(self, weights: str, rows: float = inf) -> float:
        """Return the experts' part of `layer_weight_bytes`, by default of all experts; 0 for a dense model."""
        return self._expert_bytes(weights, self.experts_touched(rows)) if self.num_experts else 0.0

    def _layer_bytes(self, weights: str, num_experts: float) -> float:
        """Return bytes of a layer's parameters with `num_experts` of its experts (1 for a dense model)."""
        form = stored_weights(weights)
        dense_bits = (form.dense_bits if self.num_experts else None) or form.bits
        share, hidden = self.expert_share, self.hidden_size
        odd = form.odd_bytes((hidden, self.attention_parameters))
        odd += share * form.odd_bytes(*self._matrices(hidden, self.shared_intermediate_size))
        odd += (1 - share) * form.odd_bytes(*self._matrices(hidden, self.dense_intermediate_size))
        return self.read_parameters * dense_bits / 8 + odd + self._expert_bytes(weights, num_experts)

    def _expert_bytes(self, weights: str, num_experts: float) -> float:
        form, width = stored_weights(weights), self.expert_hidden_size or self.hidden_size
        odd = form.odd_bytes(*self._matrices(width, self.intermediate_size))
        return self.expert_share * num_experts * (self.expert_parameters * form.bits / 8 + odd)

    def _matrices(self, width: int, intermediate_size: int) -> tuple[tuple[int, float], ...]:
        """Return (length of a row, parameters) of a feed-forward part: of its first matrices, and of its last."""
        whole = self._feed_forward(width, intermediate_size)
        last = whole / (3 if self.is_gated else 2)
        return (width, whole - last), (intermediate_size, last)

    def layer_flops(self, rows: float, context: Number, *, is_prompt: bool = False) -> Number:
        """Return FLOPs of one layer over `rows` tokens that attend to `context` cached ones and to each other."""
        return self.matrix_flops(rows) + self.mixing_flops(rows, context, is_prompt=is_prompt)

    def matrix_flops(self, rows: float) -> float:
        """Return FLOPs of one layer's matrices over `rows` tokens."""
        experts = self.expert_share * max(1, self.experts_per_token) * self.expert_parameters
        return rows * 2 * (self.read_parameters + experts)

    def mixing_flops(self, rows: float, context: Number, *, is_prompt: bool = False) -> Number:
        """Return FLOPs of one layer's attention (or its like) over `rows` tokens that follow `context` cached ones."""
        total: Any = sum(kind.num_layers * kind.flops(rows, context, is_prompt=is_prompt) for kind in self.layer_kinds)
        mixing: Number = total / self.num_layers
        return mixing

    def layer_activation_bytes(self, rows: float) -> float:
        """Return bytes of the activations between a layer's matrices, each written once and read once."""
        attention = 2 * self.hidden_size + 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        feed_forward = 2 * self.hidden_size + (3 if self.is_gated else 2) * self.intermediate_size * max(
            1, self.experts_per_token
        )
        return 2 * rows * self.num_tracks * (attention + feed_forward) * ELEMENT_BYTES

    def kv_bytes(self, num_tokens: float, cache_bits: float = 16, num_devices: int = 1) -> float:
        """Return the cache bytes of a sequence on each of `num_devices`: keys and values (`cache_bits`), and states.

        The devices of a group share out the KV heads; if they are more than heads, some hold copies. All devices hold
        a copy of compressed keys and values, which have no heads (vLLM's and SGLang's tensor parallelism).
        """
        kinds = self.layer_kinds
        return float(sum(kind.num_layers * kind.kept_bytes(num_tokens, cache_bits, num_devices) for kind in kinds))

    def layer_kv_bytes(
        self, rows: float, context: Number, cache_bits: float = 16, num_devices: int = 1, *, is_prompt: bool = False
    ) -> Number:
        """Return the cache bytes of one layer that each of `num_devices` reads, and writes for `rows` new tokens.

        A state of linear attention is read once. Decoding writes it after every row, so that an engine can go back to
        the last accepted one (vllm-project/vllm#49887, TheTom/llama-cpp-turboquant#331); a prefill writes it once.
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
        """Return bytes of the `lm_head`, for the kept vocabulary only if there is one."""
        bits = stored_weights(weights).head_bits_of(self.width)
        return (self.kept_vocabulary or self.vocab_size) * self.width * bits / 8

    def head_flops(self, rows: float) -> float:
        """Return FLOPs of the `lm_head` over `rows` tokens."""
        return 2 * rows * (self.kept_vocabulary or self.vocab_size) * self.width

    def pass_bytes(self, weights: str) -> float:
        """Return bytes of weights that a pass over one token reads."""
        return self.num_layers * self.layer_weight_bytes(weights) + self.head_bytes(weights)

    def weight_bytes(self, weights: str) -> float:
        """Return the model's bytes in memory: embeddings and all experts included, KV cache not."""
        layers = self.num_layers * self._layer_bytes(weights, max(1, self.num_experts))
        head = 0.0 if self.borrows_lm_head else self.head_bytes(weights)
        return layers + head + self.table_bytes(weights)

    def table_bytes(self, weights: str) -> float:
        """Return bytes of embedding tables that do not double as the `lm_head`."""
        return self._table_parameters * stored_weights(weights).embedding_bits / 8


def shipped_models() -> tuple[str, ...]:
    """Return ids of the shapes that are shipped."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def model_shape(name: str | Path) -> ModelShape:
    """Return a shape: a shipped one by any of its names, or that of a YAML file, a `config.json` or its folder.

    Raises:
        ModelError: unknown name (lists the valid ones), or a config with parts that a shape cannot describe.
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
    """Return the shape of a Hugging Face config, or of its text model; raises `ModelError` if it describes none."""
    return validated(ModelShape, shape_fields(raw, source=source), ModelError, source=source)
