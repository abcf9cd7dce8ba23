"""How weights are stored: true bits of a weight by the names that people type (`Q4_K_M`, `nvfp4`, `awq`, `UD-Q4_K_XL`).

Bits are those of files: scales, zeros and the mix of types in one file included (`formats.yaml`).
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from decoding.errors import ConfigError, unknown
from decoding.validation import Many
from decoding.yaml_file import StrictModel, load_yaml

_FILE: Final = Path(__file__).with_name("formats.yaml")
_DECORATION: Final = re.compile(r"^ud[-_ ]|[-_ ]r[48]$|[-_ ]g\d+$")
"""Around a name: Unsloth's `UD-`, ik_llama.cpp's interleaved rows, the size of a group."""
_BITS: Final = re.compile(r"(?<![\d.])(\d(?:\.\d+)?)[ -]?(?:bpw|bit)|exl[23][ _-](\d(?:\.\d+)?)", re.IGNORECASE)
_IN_MLX: Final = re.compile(
    r"mxfp4(?:[-_]q[468])?(?!_)|mxfp8|nvfp4|(?:bf|fp|f)16|(?<=-int)\d+|(?<=-q)\d|(?<![\d.])\d+(?:\.\d+)?(?=[ -]?bit)"
)
"""What tells the weights in the name of a repository of MLX's."""
Bits = Annotated[float, Field(gt=0.5, le=32), BeforeValidator(float)]


class StoredWeights(StrictModel):
    """How a model's matrices are stored.

    Attributes:
        bits: of one weight in the layers, scales included.
        dense_bits: of what is no expert in a mixture of experts; None: as the experts.
        head_bits: of the `lm_head`, a tied embedding too.
        embedding_bits: of an embedding table of its own.
        like: the plain type whose measurements stand in for it, and that devices say they run.
        aliases: what it is called too.
        source: where the bits are from.
    """

    bits: Bits
    dense_bits: Bits | None = None
    head_bits: Bits
    embedding_bits: Bits
    like: Annotated[str, Field(pattern="^(bf16|int8|int4)$")]
    aliases: Many[str] = ()
    source: Annotated[str, Field(min_length=1)]


@cache
def weight_formats() -> Mapping[str, StoredWeights]:
    """Return all formats by name, those of eight and more bits among them."""
    return load_yaml(_FILE, dict[str, StoredWeights])


def stored_weights(name: str) -> StoredWeights:
    """Return how weights of that name are stored; errors as in `weights_named`."""
    return weight_formats()[weights_named(name)]


@cache
def weights_named(text: str) -> str:
    """Return the format that a name means: `UD-Q4_K_M`, `q4-k-m` and `Q4_K` are all `q4_k_m`.

    Raises:
        ConfigError: no format is called so; says what is close.
    """
    plain = text.strip().lower()
    for spelt in (plain, _DECORATION.sub("", plain)):
        if (found := _by_spelling().get(_letters(spelt))) is not None:
            return found
    raise ConfigError(unknown("weight format", text, weight_formats()))


def weights_told(text: str) -> str:
    """Return the format that people's words mean: the most of them that are a format's name, as in `QAT Q4_0`.

    Bits alone (`4.5bpw`) mean the nearest format of files whose head has more bits, but fewer than 16.

    Raises:
        ConfigError: none of the words is known; says what is close.
    """
    words = re.split(r"[^\w.]+|\.(?!\d)|_(?=ud|qat)|(?<=qat)_", text.strip().lower())
    for count in range(len(words), 0, -1):
        for start in range(len(words) - count + 1):
            spelt = _DECORATION.sub("", " ".join(words[start : start + count]))
            if (found := _by_spelling().get(_letters(spelt))) is not None:
                return found
    bits = _BITS.search(text)
    if bits is None:
        return weights_named(text)
    near = (name for name, one in weight_formats().items() if one.bits < one.head_bits < 16)
    return min(near, key=lambda name: abs(weight_formats()[name].bits - float(bits[1] or bits[2])))


def weights_in_name(name: str | Path, published_in: str = "bf16") -> str | None:
    """Return the format that a model's name tells, as in `Qwen3-8B-Q8_0.gguf` and `Qwen/Qwen3-8B-AWQ`; None if none.

    Where nothing else is asked for (`:Q8_0` of `-hf`, or in a tag of Ollama's), llama.cpp takes Q4_K_M of a repository
    of GGUF files, and so does Ollama (`qwen3:8b`), but what gpt-oss is published in has a GGUF type of its own.
    """
    owner, _, own = str(name).lower().rpartition("/")
    own, colon, tag = own.partition(":")
    is_gguf = "gguf" in own
    # before "unquantized" stands a format that a model was trained for, and behind it how it is stored
    _, is_unquantized, behind = own.rpartition("unquantized")
    if not is_gguf and (owner == "mlx-community" or "mlx" in re.split(r"[^a-z0-9]+", own)):
        return weights_of_mlx(behind) or (published_in if is_unquantized else None)
    try:
        told = weights_told(f"{tag} {behind.replace('mlx', '')}")  # which means 4 bits
    except ConfigError:
        if not (is_gguf or colon):
            return published_in if is_unquantized else None
        told = published_in if published_in == "mxfp4" else "q4_k_m"
    return "mxfp4_moe" if told == "mxfp4" and is_gguf else told


def weights_of_mlx(own: str) -> str | None:
    """Return the format of a repository of MLX's, where most say the bits only; None where nothing tells it.

    No other engine loads such files, so bits of which MLX has no format mean the nearest one.
    """
    found = _IN_MLX.search(own) or re.search("mlx$", own)
    if found is None:
        return None
    told = {"mlx": "4", "fp16": "bf16", "f16": "bf16", "16": "bf16"}.get(found[0], found[0])
    named = f"mlx-{told}" + "bit" * told.isdigit()
    formats = {name: one.bits for name, one in weight_formats().items() if name.startswith("mlx-")}
    if (known := _by_spelling().get(_letters(named))) in formats:
        return known
    return min(formats, key=lambda name: abs(formats[name] - float(told)))


def _checked(value: object) -> object:
    """Return the format that a text means; anything else is left to pydantic."""
    try:
        return weights_named(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(error) from error


WeightFormat = Annotated[str, BeforeValidator(_checked)]
"""The name of a format; keys, values and activations are 16 bits wide in all of them."""


@cache
def _by_spelling() -> Mapping[str, str]:
    return {_letters(alias): name for name, one in weight_formats().items() for alias in (name, *one.aliases)}


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)
