"""Packages that only some verbs need: `pip install mirrorsd` is enough to plan, search and simulate."""

from __future__ import annotations

from typing import Final

RUN: Final = frozenset(
    {"gguf", "huggingface_hub", "ml_dtypes", "openvino", "safetensors", "tokenizers", "torch"},
)
"""Top-level modules of the extra `run`: all that loads models and decodes; pyproject.toml lists their packages."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the message for a missing package of an extra.

    Raises:
        ModuleNotFoundError: the module belongs to no extra, which is a defect.
    """
    name = (error.name or "").partition(".")[0]
    if name not in RUN:
        raise error
    return f"{name} is not installed, and this verb needs it: pip install 'mirrorsd[run]'"
