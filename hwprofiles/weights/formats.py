"""Weight formats: effective bits per weight by the names that people type (`Q4_K_M`, `nvfp4`, `awq`, `UD-Q4_K_XL`).

Effective bits (`formats.yaml`) include scales, zero points and the mix of types in one file.
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
"""Prefixes and suffixes of a format's name: Unsloth's `UD-`, ik_llama.cpp's `_R4` (interleaved rows), a group size."""
_BITS: Final = re.compile(r"(?<![\d.])(\d(?:\.\d+)?)[ -]?(?:bpw|bit)|exl[23][ _-](\d(?:\.\d+)?)", re.IGNORECASE)
_IN_MLX: Final = re.compile(
    r"mxfp4(?:[-_]q[468])?(?!_)|mxfp8|nvfp4|(?:bf|fp|f)16|(?<=-int)\d+|(?<=-q)\d|(?<![\d.])\d+(?:\.\d+)?(?=[ -]?bit)"
)
"""The part of an MLX repository's name that tells the weight format."""
_BLOCK: Final = 256
"""Weights of a block of most GGUF types; llama.cpp stores rows of other lengths in another type."""
_Q6_K: Final = 6.5625
_Q8_0: Final = 8.5
Bits = Annotated[float, Field(gt=0.5, le=32), BeforeValidator(float)]


class StoredWeights(StrictModel):
    """How a model's matrices are stored.

    Attributes:
        bits: effective bits of a weight in the layers.
        odd_bits: effective bits of weights in rows whose length is no multiple of 256; None: as `bits`.
        dense_bits: effective bits of a mixture's weights outside of experts; None: as `bits`.
        head_bits: effective bits of the `lm_head`, tied or not.
        embedding_bits: effective bits of an embedding table that is not tied to the `lm_head`.
        like: the plain type whose measurements stand in for the format, and that data sheets list.
        aliases: other names of the format.
        source: where the bits are from.
    """

    bits: Bits
    odd_bits: Bits | None = None
    dense_bits: Bits | None = None
    head_bits: Bits
    embedding_bits: Bits
    like: Annotated[str, Field(pattern="^(bf16|int8|int4)$")]
    aliases: Many[str] = ()
    source: Annotated[str, Field(min_length=1)]

    def odd_bytes(self, *matrices: tuple[int, float]) -> float:
        """Return the bytes that matrices, each (length of a row, parameters), take beyond `bits` for odd rows."""
        more = (self.odd_bits or self.bits) - self.bits
        return sum(parameters for width, parameters in matrices if width % _BLOCK) * more / 8

    def head_bits_of(self, width: int) -> float:
        """Return the bits of a weight of an `lm_head` with rows of `width`: llama.cpp stores odd rows as Q8_0."""
        is_of_blocks = self.odd_bits is not None or self.head_bits == _Q6_K
        return _Q8_0 if is_of_blocks and width % _BLOCK else self.head_bits


@cache
def weight_formats() -> Mapping[str, StoredWeights]:
    """Return all formats by name."""
    return load_yaml(_FILE, dict[str, StoredWeights])


def stored_weights(name: str) -> StoredWeights:
    """Return the format of a name; raises as `weights_named`."""
    return weight_formats()[weights_named(name)]


@cache
def weights_named(text: str) -> str:
    """Return the key of the format that a name means: `UD-Q4_K_M`, `q4-k-m` and `Q4_K` are all `q4_k_m`.

    Raises:
        ConfigError: unknown name; the message lists close ones.
    """
    plain = text.strip().lower()
    for spelt in (plain, _DECORATION.sub("", plain)):
        if (found := _by_spelling().get(_letters(spelt))) is not None:
            return found
    raise ConfigError(unknown("weight format", text, weight_formats()))


def weights_told(text: str) -> str:
    """Return the key of the format in a text such as `QAT Q4_0`: the longest run of words that is a format's name.

    A number of bits alone (`4.5bpw`) means the nearest mixed format: one whose `lm_head` has more bits, but below 16.

    Raises:
        ConfigError: no format is in the text; the message lists close ones.
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
    """Return the format in a model's name, such as `Qwen3-8B-Q8_0.gguf` or `Qwen/Qwen3-8B-AWQ`; None without one.

    Without a tag (`:Q8_0`), both llama.cpp's `-hf` (for a GGUF repository) and Ollama (`qwen3:8b`) load Q4_K_M; except
    for gpt-oss (published in mxfp4), which has a GGUF type of its own.
    """
    owner, _, repository = str(name).lower().rpartition("/")
    repository, colon, tag = repository.partition(":")
    is_gguf = "gguf" in repository
    # before "unquantized" is the format that a model was trained for, behind it the one that it is stored in
    _, is_unquantized, behind = repository.rpartition("unquantized")
    if not is_gguf and (owner == "mlx-community" or "mlx" in re.split(r"[^a-z0-9]+", repository)):
        return weights_of_mlx(behind) or (published_in if is_unquantized else None)
    try:
        told = weights_told(f"{tag} {behind.replace('mlx', '')}")  # "mlx" alone would mean 4 bits
    except ConfigError:
        if not (is_gguf or colon):
            return published_in if is_unquantized else None
        told = published_in if published_in == "mxfp4" else "q4_k_m"
    return "mxfp4_moe" if told == "mxfp4" and is_gguf else told


def weights_of_mlx(repository: str) -> str | None:
    """Return the format in the name of an MLX repository (most tell the bits only); None if the name tells none.

    Bits without a format of MLX mean the nearest one: no other engine loads such files.
    """
    found = _IN_MLX.search(repository) or re.search("mlx$", repository)
    if found is None:
        return None
    told = {"mlx": "4", "fp16": "bf16", "f16": "bf16", "16": "bf16"}.get(found[0], found[0])
    named = f"mlx-{told}" + "bit" * told.isdigit()
    formats = {name: one.bits for name, one in weight_formats().items() if name.startswith("mlx-")}
    if (known := _by_spelling().get(_letters(named))) in formats:
        return known
    return min(formats, key=lambda name: abs(formats[name] - float(told)))


def _checked(value: object) -> object:
    """Return the key of the format that a text names; pydantic refuses values that are not text."""
    try:
        return weights_named(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(error) from error


WeightFormat = Annotated[str, BeforeValidator(_checked)]
"""The key of a weight format. Formats say nothing of the KV cache and of activations, which have 16 bits by default."""


@cache
def _by_spelling() -> Mapping[str, str]:
    return {_letters(alias): name for name, one in weight_formats().items() for alias in (name, *one.aliases)}


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)
