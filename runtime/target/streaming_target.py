"""A target that drafts for itself: the pass that verifies a tree drafts the next one (speculative streaming).

The paper (arXiv 2402.11131, section 3) gives every row of the pass its streams and drops those of refused rows. Here
the streams of the last accepted row alone follow its verdict, through the top layers: same tree, same text, and a few
rows instead of a few per node. On one core, with six layers of thirty and three streams, they add 12 ms to any tree's
verification; streams of all rows add 28 ms after 16 nodes and 84 ms after 63.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.messages import Verdict, Window
from decoding.tree_shape import cut
from runtime.arrays import inference
from runtime.backends.eager import EagerBackend
from runtime.drafters.streams.drafter import StreamTree
from runtime.models.decoder import Decoder
from runtime.target.early_exits import ExitHeads, exit_of
from runtime.target.target_model import TargetModel


class StreamingTarget(TargetModel):
    """A `TargetModel` whose streams draft; its verdicts are those of `verify`, computed by the same calls."""

    def __init__(self, decoder: Decoder, streams: StreamTree, heads: ExitHeads | None = None) -> None:
        backend = EagerBackend(decoder)
        super().__init__(backend, exit_of(decoder.lm_head.weight.detach(), heads, backend))
        self.streams, self.num_streams = streams, streams.num_streams
        self._tree = streams.paths

    def set_tree(self, *, size: int, depth: int) -> None:
        """Draft trees of so many nodes, on paths of at most `depth`."""
        self._tree = cut(self.streams.paths, size, depth)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Add the tokens of this prompt to those that exits and streams may propose."""
        super().add_prompt_tokens(prompt)
        self.streams.output.add_prompt_tokens(prompt)

    @inference
    def stream(self, window: Window) -> Verdict:
        """All layers over the last committed token and the window; the verdict carries the next window."""
        half_way = self.advance(self.embed(window), self.streams.start_layer)
        verdict = self.decide(self.advance(half_way, self.num_layers))
        last = verdict.path[-1] + 1 if verdict.path else verdict.num_accepted
        x_1D = half_way.x_BTD[0, last : last + 1]
        return verdict._replace(window=self.streams.draft(x_1D, self.cache, self._tree))
