"""Acceptance of sampled drafts along a sampled text, by the ratio rule.

The rule (Leviathan 2211.17192, Chen 2302.01318) accepts a token drawn from the draft's distribution q with probability
min(1, p / q), where p is the target's. Given that the text's token is x, it was drafted and accepted with probability
min(1, q(x) / p(x)); otherwise the refused token is distributed as max(q - p, 0).

Shape legend: N tokens of the text, W positions of a window, V vocabulary; others as in `runtime.models.decoder`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import NUM_SAMPLED_FROM, Candidates
from decoding.record import Ids
from decoding.recorded.prompt_record import Shares
from runtime.arrays import Array, concatenated, inference
from runtime.backends.backend import prefill_pieces
from runtime.drafters.language_model.draft_passes import DraftPasses
from runtime.verification.rules import Sampling, sample, truncated, uniform

NEVER = -1
"""Stands for the refused token where no token can be refused."""


class SampledText(NamedTuple):
    """A prompt of `start` tokens with a text that the target sampled; probabilities are the target's, [N, V]."""

    ids: Sequence[int]
    start: int
    probabilities: Sequence[NDArray[np.float32]]
    sampling: Sampling


@inference
def sampled_drafts(
    draft: DraftPasses, text: SampledText, *, max_window: int, features_TE: Array | None = None
) -> tuple[Shares, Ids]:
    """Return acceptance probabilities and refused tokens of windows from each position, both [N, W] (`PromptRecord`).

    `features_TE`: results of `normalise_features` for the text's positions. Without features a draft's distribution of
    a token does not depend on where its window began, so it is computed once.
    """
    num_tokens = len(text.ids) - text.start
    acceptance = np.zeros((num_tokens, max_window), dtype=np.float32)
    refused = np.full((num_tokens, max_window), NEVER, dtype=np.int32)
    width = 1 if features_TE is None else max_window
    for position, hidden_TD in enumerate(_hidden(draft, text, width, features_TE)):
        for place, logits_V in enumerate(draft.output.logits(hidden_TD)):
            token = position + place
            drafted_from = truncated(logits_V, text.sampling.temperature, NUM_SAMPLED_FROM)
            ids = tuple(draft.output.ids[list(drafted_from.tokens)].tolist())
            decided = _decide(drafted_from._replace(tokens=ids), text, token)
            starts = slice(position, position + 1) if width > 1 else slice(max(0, token - max_window + 1), token + 1)
            rows = np.arange(starts.start, starts.stop)
            acceptance[rows, token - rows], refused[rows, token - rows] = decided
    return acceptance, refused


def _decide(drafted_from: Candidates, text: SampledText, token: int) -> tuple[float, int]:
    """Return the probability that the text's token was drafted and accepted, and a drawn refused token."""
    wanted, target_V = text.ids[text.start + token], text.probabilities[token]
    drafted = dict(zip(drafted_from.tokens, drafted_from.probabilities, strict=True))
    acceptance = min(1.0, drafted.get(wanted, 0.0) / max(float(target_V[wanted]), 1e-30))
    left = np.maximum(np.asarray(drafted_from.probabilities) - target_V[list(drafted_from.tokens)], 0.0)
    if acceptance == 1.0 or not left.any():
        return 1.0, NEVER
    draw = uniform(text.sampling.seed, "draft", text.start + token)
    return acceptance, drafted_from.tokens[sample(left, draw)]


def _hidden(draft: DraftPasses, text: SampledText, width: int, features_TE: Array | None) -> Iterator[Array]:
    """Yield for each position the draft's hidden states that propose the first `width` tokens of its window.

    Only the row of the last known token has features.
    """
    ids, start = np.array(text.ids), text.start
    backend, num_slots, rows = draft.on_a_backend(), len(ids) + width, tuple({1, width})
    backend.prepare(draft.plan(num_slots=num_slots, num_prompt=start, rows=rows, with_features=features_TE is not None))
    cache, shifted_TE = backend.new_text(), draft.of_positions_before(features_TE, len(ids))
    cache.start(num_slots)

    def feed(first: int, stop: int, *, is_known: bool) -> Array:
        features = None if shifted_TE is None or not is_known else shifted_TE[first:stop]
        positions = np.arange(first, stop)
        return draft.step(ids[first:stop], positions=positions, cache=cache, features_TE=features).hidden_TD

    draft.output.add_prompt_tokens(text.ids[:start])
    for first, stop in prefill_pieces(start - 1):
        feed(first, stop, is_known=True)
    for prefix in range(start, len(ids)):
        cache.set_length(prefix - 1)
        hidden_TD = feed(prefix - 1, prefix, is_known=True)
        stop = min(prefix + width - 1, len(ids) - 1)
        if stop > prefix:
            hidden_TD = concatenated([hidden_TD, feed(prefix, stop, is_known=False)])
        yield hidden_TD
