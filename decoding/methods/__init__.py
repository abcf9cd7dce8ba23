"""All decoding methods by name. A method is a generator that makes the lane calls of `decoding.lanes`."""

from decoding.method_traits import MethodTraits
from decoding.methods.in_turn import (
    AUTOREGRESSIVE,
    BLOCK,
    EAGLE2,
    EAGLE3,
    HYDRA,
    MEDUSA,
    PROMPT_LOOKUP,
    SPECULATIVE,
    SPECULATIVE_STREAMING,
)
from decoding.methods.mirror import MIRROR

_ALL = (AUTOREGRESSIVE, SPECULATIVE, MIRROR, MEDUSA, HYDRA, EAGLE2, EAGLE3, SPECULATIVE_STREAMING, PROMPT_LOOKUP, BLOCK)
METHODS: dict[str, MethodTraits] = {traits.name: traits for traits in _ALL}
"""The traits of every method, in the order in which searches try them; to register a method, add it to `_ALL`."""
