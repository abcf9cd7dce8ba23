"""Which shape that ships a model's name means: `Qwen/Qwen3-8B`, `Llama-3.1-8B-Instruct-Q4_K_M.gguf`, `gpt-oss 120B`.

Owners, makers' prefixes, and what makes a model an instructed or a quantised one do not change its shape. Models that
have the shape of another are `ALIASES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "hermes-3-llama-3.1-8b": "llama-3.1-8b",
    "vicuna-7b": "llama-2-7b",
    "vicuna-13b": "llama-2-13b",
    "tinyllama": "tinyllama-1.1b",
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "vicuna-33b": "llama-30b",
    "codellama-7b": "llama-2-7b",
    "codellama-13b": "llama-2-13b",
    "codellama-70b": "llama-2-70b",
    "deepseek-coder-6.7b": "llama-2-7b",
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "deepseek-v3.2": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3",
    "deepseek-coder-v2-lite": "deepseek-v2-lite",
    "deepseek-coder-v2": "deepseek-v2",
    "deepseek-v2.5": "deepseek-v2",
    "deepseek2-16b": "deepseek-v2-lite",
    "qwq-32b": "qwen2.5-32b",
    "qwen2-0.5b": "qwen2.5-0.5b",
    "qwen2-1.5b": "qwen2.5-1.5b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "qwen2.5-coder-0.5b": "qwen2.5-0.5b",
    "qwen2.5-coder-1.5b": "qwen2.5-1.5b",
    "qwen2.5-coder-3b": "qwen2.5-3b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwen3-coder-next-80b-a3b": "qwen3-next-80b-a3b",
    "qwen3-coder-480b": "qwen3-coder-480b-a35b",
    "glm-4.5-air-106b-a12b": "glm-4.5-air",
    "mistral": "mistral-7b",
    "mixtral": "mixtral-8x7b",
    "glm-4.5": "glm-4.6",
    "glm-4.6-355b-a32b": "glm-4.6",
    "glm-4.7": "glm-4.6",
    "glm-5": "glm-5.2",
    "glm-5.1": "glm-5.2",
    "kimi-k2.5": "kimi-k2",
    "kimi-k2.6": "kimi-k2",
    "minimax-m2.1": "minimax-m2",
    "minimax-m2.5": "minimax-m2",
    "minimax-m2.7": "minimax-m2",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "llama-4-maverick-17b-128e": "llama-4-maverick",
    "devstral-2-123b": "mistral-large-123b",
    "mistral-large": "mistral-large-123b",
    "phi-3.5-mini": "phi-3-mini",
    "mistral-small": "mistral-small-24b",
    "magistral-small": "mistral-small-24b",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "mistral-small-3.2-24b": "mistral-small-24b",
    "devstral-small": "mistral-small-24b",
    "mistral-nemo": "mistral-nemo-12b",
    "devstral-small-2": "mistral-small-24b",
    "devstral-small-2-24b": "mistral-small-24b",
    "mistral-large-2": "mistral-large-123b",
    "pixtral-12b": "mistral-nemo-12b",
    "apriel-1.5-15b-thinker": "apriel-1.5-15b",
    "openllama-7b": "llama-2-7b",
    "openllama-13b": "llama-2-13b",
    "hermes-3-8b": "llama-3.1-8b",
    "hermes-4-70b": "llama-3.1-70b",
    "cogito-v2-70b": "llama-3.1-70b",
    "llama-3.1-nemotron-70b": "llama-3.1-70b",
    "k2-think": "qwen2.5-32b",
    "intellect-3": "glm-4.5-air",
    "intern-s1": "qwen3-235b-a22b",
    "qwen3-omni-30b-a3b": "qwen3-30b-a3b",
    "bonsai-27b": "qwen3.6-27b",
    "ternary-bonsai-27b": "qwen3.6-27b",
    "bonsai-8b": "qwen3-8b",
    "glm-4-9b-0414": "glm-4-9b",
    "ring-1t": "ling-1t",
    "ling-2.0-flash": "ling-flash-2.0",
    "ring-flash-2.0": "ling-flash-2.0",
    "ring-mini-2.0": "ling-mini-2.0",
    "dbrx": "dbrx-132b",
    "command-a": "command-a-111b",
    "command-r": "command-r-35b",
    "aya-32b": "aya-expanse-32b",
}
"""Other models by the shapes that they have too."""
_NOTES: Final = re.compile(r"\(.*?\)|\.gguf$")
_FILE_TYPE: Final = re.compile(r"\.(?=i?q\d|b?f16)")
"""Before the type in a file's name, as in `Llama-3-8B.Q4_K_M.gguf`."""
_MAKERS: Final = re.compile(r"^(meta|mistralai|google|microsoft)-")
_BEHIND: Final = re.compile(
    r"-(instruct|base|chat|it|hf|gguf|mlx|thinking|mtp|qat|dwq|preview|fast|fp8|fp4|fp16|bf16|f16|awq|gptq|int4|int8|"
    r"nvfp4|mxfp4|[348]bit|w4a16|w8a8|autoround|dynamic|reasoning|dense|exl[23]|[\d.]+bpw|v\d(\.\d)?|\d{4}|ud|"
    r"i?q\d|[km01]|x?x?[sml])$"
)
"""What may stand at the end of a name without making it another shape."""
_SEES: Final = re.compile(r"(?<=[\d.])-(vl|math)(?=-|$)")
"""A model that sees, or was taught to compute, decodes as the one without."""


def named_shape(name: str, shipped: Iterable[str]) -> str | None:
    """Return which of the shapes that ship a name means; None if none of them does."""
    known = {_key(one): one for one in shipped} | {_key(alias): one for alias, one in ALIASES.items()}
    text = _NOTES.sub("", name.strip().lower().rpartition("/")[2]).strip()
    text = _MAKERS.sub("", re.sub(r"[ _]+", "-", _FILE_TYPE.sub("-", text)))
    while (found := known.get(_key(text)) or known.get(_key(_SEES.sub("", text)))) is None:
        shorter = _BEHIND.sub("", text)
        if shorter == text:
            return None
        text = shorter
    return found


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
