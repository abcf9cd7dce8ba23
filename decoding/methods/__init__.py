"""Every decoding method, by name. A method is a generator over `decoding.lanes` and exists only here."""

from __future__ import annotations

from decoding.lanes import MethodFunction
from decoding.methods.autoregressive import autoregressive
from decoding.methods.mirror import mirror
from decoding.methods.speculative import speculative
from decoding.methods.speculative_streaming import speculative_streaming
from decoding.methods.tree import tree
from decoding.schedule import Method

METHODS: dict[Method, MethodFunction] = {
    "autoregressive": autoregressive,
    "speculative": speculative,
    "mirror": mirror,
    "medusa": tree,
    "hydra": tree,
    "eagle2": tree,
    "eagle3": tree,
    "speculative_streaming": speculative_streaming,
}
