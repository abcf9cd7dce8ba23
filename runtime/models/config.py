"""The shape of a decoder: the one place where Hugging Face's names become ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from decoding.errors import ModelError, shown

if TYPE_CHECKING:
    # read by pydantic, which a shape that was never a file does not need (benchmarks/gpu.py)
    from runtime.models.hf_config import HfConfig, HfFamily, HfOptConfig, HfRope

_ACTIVATIONS: Final = {
    "LlamaForCausalLM": "silu",
    "MistralForCausalLM": "silu",
    "Qwen2ForCausalLM": "silu",
    "Qwen3ForCausalLM": "silu",
    "OPTForCausalLM": "relu",
}
SUPPORTED_ARCHITECTURES = tuple(_ACTIVATIONS)
_OPT_NORM_EPS: Final = 1e-5
"""Epsilon of transformers, since OPT configurations have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 (`rope_scaling` with type `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and constants of a pre-norm decoder (Llama, Mistral, Qwen2, Qwen3, OPT).

    `rope_theta` is 0 where positions are learned. `random_seed` is that of a model without weights of its own
    (`runtime.storage.shape_folder`).
    """

    architecture: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_scaling: Llama3Rope | None = None
    eos_token_ids: tuple[int, ...] = ()
    positions: Literal["rotary", "learned"] = "rotary"
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["gated", "relu"] = "gated"
    random_seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            msg = f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            raise ModelError(msg)
        if self.positions == "rotary" and (self.head_dim % 2 or not self.head_dim):
            raise ModelError(f"head_dim is {self.head_dim}: rotary embeddings need an even one of at least 2")

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer's matrices, biases and norms left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + (3 if self.mlp == "gated" else 2) * self.hidden_size * self.intermediate_size

    def require_rotary(self, what: str) -> None:
        """Raise `ModelError` for a model that is no Llama, to which trained heads and the like cannot belong."""
        if (self.positions, self.norm, self.mlp) != ("rotary", "rms", "gated"):
            raise ModelError(
                f"{what}: made for targets with rotary positions, RMS norms and gated MLPs (Llama, Mistral, Qwen), not "
                f"for {self.architecture}, which any model with its tokenizer can draft for, and prompt lookup"
            )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json`, and the EOS ids of `generation_config.json`; raise `ModelError` if wrong or missing."""
        from runtime.models.hf_config import HfGeneration, read_object, validated

        path = folder / "config.json"
        holds = "a model folder holds config.json, tokenizer.json and *.safetensors"
        config = cls.from_hf(read_object(path, holds=holds), source=str(path))
        path = folder / "generation_config.json"
        if not path.is_file():
            return config
        generation = validated(HfGeneration, read_object(path, holds=holds), source=str(path))
        eos = _as_ids(generation.eos_token_id)
        return replace(config, eos_token_ids=eos) if eos else config

    @classmethod
    def from_hf(cls, raw: dict[str, Any], *, source: str = "config.json") -> ModelConfig:
        """Translate a Hugging Face config; raise `ModelError` for a wrong key or what is not supported."""
        from runtime.models.hf_config import HfConfig, HfFamily, HfOptConfig, validated

        family = validated(HfFamily, raw, source=source)
        architecture = _supported_architecture(family, source)
        if architecture == "OPTForCausalLM":
            return replace(_opt(validated(HfOptConfig, raw, source=source), source), random_seed=family.random_seed)
        found = validated(HfConfig, raw, source=source)
        qwen2, bias = architecture == "Qwen2ForCausalLM", bool(found.attention_bias)
        try:
            return cls(
                architecture=architecture,
                vocab_size=found.vocab_size,
                num_layers=found.num_hidden_layers,
                hidden_size=found.hidden_size,
                intermediate_size=found.intermediate_size,
                num_heads=found.num_attention_heads,
                num_kv_heads=found.num_key_value_heads or found.num_attention_heads,
                head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
                max_position=min(
                    found.max_position_embeddings,
                    _window(family, architecture, source) or found.max_position_embeddings,
                ),
                rope_theta=found.rope_theta or _rope(found).rope_theta or 10_000.0,
                norm_eps=found.rms_norm_eps,
                tie_embeddings=bool(found.tie_word_embeddings),
                attention_bias=bias or qwen2,
                attention_out_bias=bias and not qwen2,
                mlp_bias=bool(found.mlp_bias),
                qk_norm=architecture == "Qwen3ForCausalLM",
                rope_scaling=_rope_scaling(_rope(found)),
                eos_token_ids=_as_ids(found.eos_token_id),
                random_seed=family.random_seed,
            )
        except ModelError as error:
            raise ModelError(f"{source}: {error}") from error


def _supported_architecture(found: HfFamily, source: str) -> str:
    architecture = (found.architectures or ["(none)"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {shown(architecture)} is not supported; supported: {supported}")
    name, only = "activation_function" if architecture == "OPTForCausalLM" else "hidden_act", _ACTIVATIONS[architecture]
    if getattr(found, name) not in (None, only):
        raise ModelError(f"{source}: {name} {shown(getattr(found, name))} is not supported; supported: {only!r}")
    if quantization := found.quantization_config:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        name = method if isinstance(method, str) else shown(method)
        raise ModelError(
            f"{source}: weights quantized by {name} are not read; name the model's folder in 16 or 32 bits"
        )
    return architecture


def _window(found: HfFamily, architecture: str, source: str) -> int | None:
    """Tokens that sliding-window attention sees; longer texts are refused, shorter ones are seen whole."""
    if architecture == "MistralForCausalLM":
        return found.sliding_window
    if found.use_sliding_window and not found.sliding_window:
        raise ModelError(f"{source}: use_sliding_window is true, but sliding_window is {found.sliding_window}")
    return found.sliding_window if found.use_sliding_window else None


def _opt(found: HfOptConfig, source: str) -> ModelConfig:
    unsupported = {
        "word_embed_proj_dim": (found.word_embed_proj_dim or found.hidden_size, found.hidden_size),
        "do_layer_norm_before": (found.do_layer_norm_before, True),
        "enable_bias": (found.enable_bias, True),
        "layer_norm_elementwise_affine": (found.layer_norm_elementwise_affine, True),
        "_remove_final_layer_norm": (found.remove_final_layer_norm, False),
    }
    for name, (value, supported) in unsupported.items():
        if value != supported:
            raise ModelError(f"{source}: {name} {value} is not supported in OPT models; supported: {supported}")
    if found.hidden_size % found.num_attention_heads:
        heads = found.num_attention_heads
        raise ModelError(f"{source}: hidden_size {found.hidden_size} is not a multiple of num_attention_heads {heads}")
    return ModelConfig(
        architecture="OPTForCausalLM",
        vocab_size=found.vocab_size,
        num_layers=found.num_hidden_layers,
        hidden_size=found.hidden_size,
        intermediate_size=found.ffn_dim,
        num_heads=found.num_attention_heads,
        num_kv_heads=found.num_attention_heads,
        head_dim=found.hidden_size // found.num_attention_heads,
        max_position=found.max_position_embeddings,
        rope_theta=0.0,
        norm_eps=_OPT_NORM_EPS,
        tie_embeddings=found.tie_word_embeddings is not False,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        eos_token_ids=_as_ids(found.eos_token_id),
        positions="learned",
        norm="layer",
        mlp="relu",
    )


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _rope(found: HfConfig) -> HfRope:
    """Older configs write `rope_scaling` next to `rope_theta`, newer ones put both in `rope_parameters`."""
    from runtime.models.hf_config import HfRope

    return found.rope_parameters or found.rope_scaling or HfRope()


def _rope_scaling(rope: HfRope) -> Llama3Rope | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"rope_scaling type {shown(kind)} is not supported; supported: 'default', 'llama3'")
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    original = rope.original_max_position_embeddings
    if factor is None or low is None or high is None or original is None:
        raise ModelError(
            "rope_scaling of type 'llama3' needs factor, low_freq_factor, high_freq_factor and "
            "original_max_position_embeddings"
        )
    if not low < high:
        raise ModelError(f"rope_scaling has low_freq_factor {low}, not below high_freq_factor {high}")
    return Llama3Rope(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position=original)
