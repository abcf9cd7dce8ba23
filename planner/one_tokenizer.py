"""Whether two models can be a pair: they need one tokenizer."""

from typing import Final

from decoding.errors import PlanError
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models

MOST_PADDING: Final = 128
"""Most rows by which `lm_head`s of one tokenizer differ, as in llama.cpp."""


def require_one_tokenizer(target: ModelShape, draft: ModelShape) -> None:
    """Raise `PlanError` where the tokenizers differ, or if one is not known, the sizes of the vocabularies."""
    if is_taken_for_granted(target, draft):
        differ = abs(target.vocab_size - draft.vocab_size) > MOST_PADDING
        facts = f"the vocabularies have {draft.vocab_size:,} and {target.vocab_size:,} tokens"
    else:
        differ = target.tokenizer != draft.tokenizer
        facts = f"the tokenizers are {draft.tokenizer} and {target.tokenizer}"
    if not differ:
        return
    smaller = [name for name in shipped_models() if model_shape(name).num_parameters < target.num_parameters]
    fitting = [name for name in smaller if model_shape(name).tokenizer == target.tokenizer]
    others = f"; shapes that can: {', '.join(fitting)}" if fitting else ""
    raise PlanError(f"{draft.name} cannot draft for {target.name}, {facts}{others}")


def is_taken_for_granted(target: ModelShape, draft: ModelShape) -> bool:
    """Return whether a tokenizer is not known, so that only the sizes of the vocabularies can be compared."""
    return target.tokenizer is None or draft.tokenizer is None
