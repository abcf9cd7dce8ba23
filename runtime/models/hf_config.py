"""Reads Hugging Face's `config.json` and `generation_config.json`: checks the fields that matter and renames them."""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from decoding.errors import ModelError, ModelFormatError, shown
from decoding.files import parse_json, read_bytes
from decoding.validation import Many, validated
from runtime.models.config import IN_BITS, Llama3Rope, ModelConfig

Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""A size, limited so that sizes of tensors do not overflow."""
Positions = Annotated[int, Field(ge=1, le=1 << 22)]
"""A number of positions, limited because a table has cosines and sines of all of them."""
_Count = Annotated[int, Field(ge=1, le=4096)]
_TokenId = Annotated[int, Field(ge=-(1 << 31), le=1 << 31)]
"""A token id; one below 0 means no token."""
Positive = Annotated[float, Field(gt=0, le=1e12)]

CONFIG_FILE: Final = "config.json"
_ADAPTER_FILE: Final = "adapter_config.json"
GENERATION_FILE: Final = "generation_config.json"
_QUANTIZED_FILE: Final = "hf_quant_config.json"
"""The file in which NVIDIA's ModelOpt says how weights are quantized."""
_SHAPING: Final[dict[str, Any]] = {
    **dict.fromkeys(("repetition_penalty", "num_beams", "guidance_scale"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens", "penalty_alpha"), 0),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
}
"""Fields of `generation_config.json` that change even greedy texts, each with the value that has no effect (beside null
and an empty list)."""
_SAMPLING: Final[dict[str, Any]] = {
    **dict.fromkeys(("top_p", "typical_p"), 1),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff"), 0),
}
"""Fields that truncate the distribution of sampled texts, each with the value that has no effect."""
_ALSO_NOTHING: Final = {"top_k": -1}
"""Further values without effect, as vLLM writes them."""
MARK: Final = "mirrorsd_random_weights"
"""Our field in the config.json of a model with random weights: their seed (`runtime.models.model_folder`)."""


class HfModel(BaseModel):
    """Base of the parts of a file; fields that are not declared are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class HfRope(HfModel):
    """The value of `rope_scaling`, or of `rope_parameters` in newer files; the last four fields are for `llama3`."""

    rope_type: Annotated[
        Literal["default", "linear", "llama3"] | None, Field(validation_alias=AliasChoices("rope_type", "type"))
    ] = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Positions | None = None

    @property
    def scaling(self) -> Llama3Rope | None:
        """The scaling, or None; raises `ModelError` for a missing or wrong factor."""
        if self.rope_type == "linear" and self.factor != 1:
            raise ModelError(f"rope_scaling of type 'linear' has factor {self.factor}; only 1 is read, which is none")
        if self.rope_type != "llama3":
            return None
        factor, low, high = self.factor, self.low_freq_factor, self.high_freq_factor
        original = self.original_max_position_embeddings
        if factor is None or low is None or high is None or original is None:
            raise ModelError(
                "rope_scaling of type 'llama3' needs factor, low_freq_factor, high_freq_factor and "
                "original_max_position_embeddings"
            )
        if not low < high:
            raise ModelError(f"rope_scaling has low_freq_factor {low}, not below high_freq_factor {high}")
        return Llama3Rope(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position=original)


def _quantized_message(method: object) -> str:
    name = method if isinstance(method, str) else shown(method)
    return f"weights quantized by {name} are not read; {IN_BITS}"


def _as_list(value: object) -> object:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _token_ids(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids without negative ones, which stand for no token."""
    return tuple(token_id for token_id in ids if token_id >= 0)


_Ids = Annotated[Many[_TokenId], BeforeValidator(_as_list)]


class HfDecoder(HfModel):
    """The fields of all families by our names; aliases are Hugging Face's."""

    vocab_size: Size
    num_layers: Annotated[_Count, Field(alias="num_hidden_layers")]
    hidden_size: Size
    num_heads: Annotated[_Count, Field(alias="num_attention_heads")]
    max_position: Annotated[Positions, Field(alias="max_position_embeddings")]
    eos_token_ids: Annotated[_Ids, Field(alias="eos_token_id")] = ()
    random_seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = Field(default=None, alias=MARK)
    quantization_config: Any = Field(default=None, exclude=True)
    compression_config: Any = Field(default=None, exclude=True)

    @field_validator("quantization_config", "compression_config")
    @classmethod
    def _is_none(cls, found: Any) -> None:
        if found:
            method = found.get("quant_method", "unknown") if isinstance(found, dict) else found
            raise ValueError(_quantized_message(method))

    @field_validator("eos_token_ids")
    @classmethod
    def _without_negative(cls, found: tuple[int, ...]) -> tuple[int, ...]:
        return _token_ids(found)

    @abstractmethod
    def config(self, architecture: str) -> ModelConfig:
        """Return the model's configuration; raise `ModelError` if fields contradict each other."""

    def _common(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, field in HfDecoder.model_fields.items() if not field.exclude}


class HfLlama(HfDecoder):
    """Llama, Mistral and Qwen."""

    hidden_act: Literal["silu"] | None = None
    intermediate_size: Size
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    rms_norm_eps: Annotated[float, Field(ge=0, lt=1)]
    rope_theta: Positive | None = None
    rope_scaling: HfRope | None = None
    rope_parameters: HfRope | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    use_sliding_window: bool | None = None
    sliding_window: int | None = None

    @field_validator("rope_scaling", "rope_parameters", mode="before")
    @classmethod
    def _is_of_all_layers(cls, found: Any) -> Any:
        if isinstance(found, dict) and any(isinstance(value, dict) for value in found.values()):
            raise ValueError(f"rotations of their own for kinds of layers ({shown(list(found))}) are not read")
        return found or None

    def config(self, architecture: str) -> ModelConfig:
        """See `HfDecoder`; older files write `rope_scaling` next to `rope_theta`, newer ones `rope_parameters`."""
        scaling, theta = self._rotations()
        qwen2, bias = architecture == "Qwen2ForCausalLM", bool(self.attention_bias)
        # a sliding window limits the positions: within it, full attention sees the same keys
        slides = architecture == "MistralForCausalLM" or self.use_sliding_window
        if (self.use_sliding_window and not self.sliding_window) or (slides and (self.sliding_window or 0) < 0):
            why = "use_sliding_window is true" if self.use_sliding_window else "its layers slide"
            raise ModelError(f"{why}, but sliding_window is {self.sliding_window}")
        window = (self.sliding_window if slides else None) or self.max_position
        positions = {"max_position": min(self.max_position, window), "is_window": window < self.max_position}
        return ModelConfig(
            architecture=architecture,
            intermediate_size=self.intermediate_size,
            num_kv_heads=self.num_key_value_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
            rope_theta=theta,
            norm_eps=self.rms_norm_eps,
            tie_embeddings=bool(self.tie_word_embeddings),
            attention_bias=bias or qwen2,
            attention_out_bias=bias and not qwen2,
            mlp_bias=bool(self.mlp_bias),
            qk_norm=architecture == "Qwen3ForCausalLM",
            rope_scaling=scaling,
            **self._common() | positions,
        )

    def _rotations(self) -> tuple[Llama3Rope | None, float]:
        """Return scaling and theta; raise `ModelError` if two fields differ: engines disagree on which one counts."""
        given = [one for one in (self.rope_scaling, self.rope_parameters) if one is not None] or [HfRope()]
        found = [(one.scaling, one.rope_theta or self.rope_theta or 10_000.0) for one in given]
        if found[0] != found[-1]:
            raise ModelError("rope_scaling and rope_parameters ask for different rotations; keep the one that is meant")
        return found[0]


class HfOpt(HfDecoder):
    """OPT (arXiv 2205.01068); the literal types exclude its smallest and oldest variants."""

    activation_function: Literal["relu"] | None = None
    ffn_dim: Size
    word_embed_proj_dim: Size | None = None
    do_layer_norm_before: Literal[True] = True
    enable_bias: Literal[True] = True
    layer_norm_elementwise_affine: Literal[True] = True
    remove_final_layer_norm: Annotated[Literal[False], Field(alias="_remove_final_layer_norm")] = False
    tie_word_embeddings: bool | None = None

    def config(self, architecture: str) -> ModelConfig:
        """See `HfDecoder`."""
        if self.word_embed_proj_dim not in (None, self.hidden_size):
            raise ModelError(f"word_embed_proj_dim {self.word_embed_proj_dim} is not hidden_size {self.hidden_size}")
        head_dim, rest = divmod(self.hidden_size, self.num_heads)
        if rest:
            raise ModelError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_heads}"
            )
        return ModelConfig(
            architecture=architecture,
            intermediate_size=self.ffn_dim,
            num_kv_heads=self.num_heads,
            head_dim=head_dim,
            rope_theta=0.0,
            norm_eps=1e-5,  # transformers' constant; OPT configurations have no such field
            tie_embeddings=self.tie_word_embeddings is not False,
            attention_bias=True,
            attention_out_bias=True,
            mlp_bias=True,
            positions="learned",
            norm="layer",
            mlp="relu",
            **self._common(),
        )


_FAMILIES: Final[dict[str, type[HfDecoder]]] = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), HfLlama),
    "OPTForCausalLM": HfOpt,
}
SUPPORTED_ARCHITECTURES: Final = tuple(_FAMILIES)
_WITHOUT: Final[dict[str, dict[str, int]]] = {
    "LlamaForCausalLM": {"eos_token_id": 2},
    "MistralForCausalLM": {"eos_token_id": 2, "sliding_window": 4096},
    "OPTForCausalLM": {"eos_token_id": 2},
}
"""Transformers' defaults for fields that a file lacks; a field that is null is not lacking."""


class HfFamily(HfModel):
    """The field that names the family."""

    architectures: list[str] | None = None


class HfGeneration(HfModel):
    """The field of `generation_config.json` that is read."""

    eos_token_id: _Ids = ()


def read_config(folder: Path) -> ModelConfig:
    """See `ModelConfig.from_folder`."""
    if (path := folder / _ADAPTER_FILE).is_file():
        raise ModelError(
            f"{path}: is of an adapter (PEFT), which is not applied; merge it into its model (merge_and_unload), save "
            "that, and name its folder"
        )
    path = folder / CONFIG_FILE
    holds = "a model folder holds config.json, tokenizer.json and *.safetensors"
    config = translated(read_object(path, holds=holds), str(path))
    path = folder / _QUANTIZED_FILE
    quantization = read_object(path, holds=holds).get("quantization") if path.is_file() else None
    if isinstance(quantization, dict) and (method := quantization.get("quant_algo")):  # else only the KV cache
        raise ModelError(f"{path}: {_quantized_message(method)}")
    path = folder / GENERATION_FILE
    if not path.is_file():
        return config
    ids = validated(HfGeneration, read_object(path, holds=holds), ModelFormatError, source=str(path)).eos_token_id
    return replace(config, eos_token_ids=_token_ids(ids)) if ids else config


def unheeded(folder: Path, temperature: float = 0.0) -> str | None:
    """Return a warning if other engines may write other texts with a model, because its files ask for it; else None.

    Fields of `generation_config.json` that only concern sampling count at temperatures above 0.
    """
    path, warnings = folder / GENERATION_FILE, []
    raw = read_object(path, holds="") if path.is_file() else {}
    neutral = _SHAPING | (_SAMPLING if temperature else {})
    asked = [
        f"{name} {shown(raw[name])}"
        for name in neutral
        if raw.get(name) not in (None, [], neutral[name], _ALSO_NOTHING.get(name))
    ]
    if asked:
        warnings.append(
            f"{path} asks for {', '.join(asked)}, which is not applied here: engines that apply it write other texts, "
            "with another acceptance."
        )
    config = read_config(folder)
    if not config.eos_token_ids and config.random_seed is None:
        warnings.append(
            f"{folder / CONFIG_FILE} and {path.name} name no token as eos_token_id: every text is as long as it may be."
        )
    return " ".join(warnings) or None


def translated(raw: dict[str, Any], source: str) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    architecture = (validated(HfFamily, raw, ModelFormatError, source=source).architectures or ["(none)"])[0]
    if architecture not in _FAMILIES:
        if published_kind(raw):
            raise ModelError(f"{source}: is of draft heads, no model; download their folder, and name that by --heads")
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {shown(architecture)} is not supported; supported: {supported}")
    raw = _WITHOUT.get(architecture, {}) | raw
    found = validated(_FAMILIES[architecture], raw, ModelFormatError, source=source)
    try:
        return found.config(architecture)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error


def published_kind(raw: dict[str, Any]) -> str | None:
    """Return the kind of published draft heads that a config describes; None if it describes none."""
    if "medusa_num_heads" in raw:
        return "published_medusa"
    return "published_eagle3" if "eagle3" in shown(raw.get("architectures")).lower() else None


def read_object(path: Path, *, holds: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise `ModelError`, whose message ends with `holds` if the file is missing."""
    try:
        raw = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path}: no such file; {holds}") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise ModelFormatError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw
