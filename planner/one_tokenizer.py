"""Whether a model can draft for another: both need the same tokenizer."""

from typing import Final

from decoding.errors import PlanError
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models

MOST_PADDING: Final = 128
"""Vocabularies of one tokenizer may differ by this many padding tokens (llama.cpp allows as many)."""


def require_one_tokenizer(target: ModelShape, draft: ModelShape) -> None:
    """Raise `PlanError` if the tokenizers differ or, where a tokenizer is not known, the vocabulary sizes do."""
    if tokenizer_is_assumed(target, draft):
        differ = abs(target.vocab_size - draft.vocab_size) > MOST_PADDING
        facts = f"the vocabularies have {draft.vocab_size:,} and {target.vocab_size:,} tokens"
    else:
        differ = target.tokenizer != draft.tokenizer
        facts = f"the tokenizers are {draft.tokenizer} and {target.tokenizer}"
    if not differ:
        return
    smaller = [name for name in shipped_models() if model_shape(name).num_parameters < target.num_parameters]
    fitting = [name for name in smaller if model_shape(name).tokenizer == target.tokenizer]
    others = f"; models that can: {', '.join(fitting)}" if fitting else ""
    raise PlanError(f"{draft.name} cannot draft for {target.name}: {facts}{others}")


def tokenizer_is_assumed(target: ModelShape, draft: ModelShape) -> bool:
    """Return whether one tokenizer is assumed because not both are known; only vocabulary sizes are compared then."""
    return target.tokenizer is None or draft.tokenizer is None
