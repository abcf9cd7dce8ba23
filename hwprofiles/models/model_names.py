"""Finds the shipped shape for a model's name: `Qwen/Qwen3-8B`, `Llama-3.1-8B-Instruct-Q4_K_M.gguf`, `qwen3:8b`.

Owners, makers' prefixes, and endings such as `-Instruct` or `-AWQ` are ignored: they do not change the shape.
`aliases.csv` lists models that have the shape of another.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_NOTES: Final = re.compile(r"\(.*?\)|(?:-\d{5}-of-\d{5})?\.gguf$")
_FILE_TYPE: Final = re.compile(r"\.(?=i?q\d|b?f16|i1-)")
"""The dot before the weight format in a file's name, as in `Llama-3-8B.Q4_K_M.gguf`."""
_OWNER: Final = re.compile(r"^[a-z0-9.-]+_(?=[a-z])")
"""An owner before the model's name, as in `bartowski/Qwen_Qwen3-8B-GGUF`."""
_MAKERS: Final = re.compile(r"^(meta|mistralai|google|microsoft|c4ai)-")
_BEHIND: Final = re.compile(
    r"-(instruct|base|chat|it|pt|hf|gguf|mlx|think|thinking|mtp|qat|dwq|preview|fast|fp8|fp4|fp16|bf16|f16|awq|gptq|int4|int8|"
    r"nvfp4|mxfp4|[2-8]bit|(quantized\.)?w\d+a\d+|autoround|dynamic|reasoning|dense|exl[23]|[\d.]+bpw|v\d(\.\d)?|\d{4}|ud|"
    r"i?q\d|i1|bnb|unsloth|unquantized|[km01]|x?x?[sml]|ov|cw)$"
)
"""Endings of names that do not change the shape."""
_SEES: Final = re.compile(r"(?<=[\d.])-(vl|math|chat|instruct)(?=-|$)")
"""Variants within a name (vision, mathematics, chat) that do not change the shape."""
_NOT_OF_KEYS: Final = re.compile(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]")
"""Characters that names have or omit at will; dots in numbers are kept, as OPT-1.3B is not OPT-13B."""


class Alias(NamedTuple):
    """The id of the shape of a model, and the model's longest context and published weight format if they differ."""

    shape: str
    max_position: int | None = None
    published_in: str | None = None


@cache
def aliases() -> Mapping[str, Alias]:
    """Return the entries of `aliases.csv` by model name."""
    with Path(__file__).with_name("aliases.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return {
        line["alias"]: Alias(line["shape"], int(line["max_position"] or 0) or None, line["published_in"] or None)
        for line in lines
    }


def named_shape(name: str, shipped: Iterable[str]) -> Alias | None:
    """Return the shipped shape that a model's name means; None if there is none."""
    known = {_key(one): Alias(one) for one in shipped} | {_key(alias): one for alias, one in aliases().items()}
    known = {key.replace(".", ""): one for key, one in known.items()} | known  # llama.cpp writes `qwen35` for Qwen3.5
    text = _NOTES.sub("", name.strip().lower().rpartition("/")[2]).strip().replace("+", "-plus")
    named = (_found(one, known) for one in (text, _OWNER.sub("", text)))
    return next(filter(None, named), None)


def _found(text: str, known: Mapping[str, Alias]) -> Alias | None:
    """Return the shape of a name without owner, dropping endings one by one until it is known; None if never."""
    text = _MAKERS.sub("", re.sub(r"[ _:]+", "-", _FILE_TYPE.sub("-", text)))
    while (found := known.get(_key(text)) or known.get(_key(_SEES.sub("", text)))) is None:
        shorter = _BEHIND.sub("", text)
        if shorter == text:
            return None
        text = shorter
    return found


def _key(name: str) -> str:
    return _NOT_OF_KEYS.sub("", name.lower())
