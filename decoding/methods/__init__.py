"""Every decoding method, by name. A method is a generator over `decoding.lanes` and exists only here."""

from decoding.method_traits import MethodTraits
from decoding.methods.autoregressive import AUTOREGRESSIVE
from decoding.methods.draft_then_verify import BLOCK, EAGLE2, EAGLE3, HYDRA, MEDUSA, PROMPT_LOOKUP, SPECULATIVE
from decoding.methods.mirror import MIRROR
from decoding.methods.speculative_streaming import SPECULATIVE_STREAMING

_ALL = (AUTOREGRESSIVE, SPECULATIVE, MIRROR, MEDUSA, HYDRA, EAGLE2, EAGLE3, SPECULATIVE_STREAMING, PROMPT_LOOKUP, BLOCK)
METHODS: dict[str, MethodTraits] = {traits.name: traits for traits in _ALL}
"""A name in `_ALL` registers a method; searches go through them in this order."""
