"""The draft language model of torch: a few of the target's layers, its embeddings, a reduced output vocabulary.

For records and judgement every prefix of a text is a branch (`runtime.backends.sequences.Branches`), so what is found
is what a lane drafts after the same text, to the last bit. Shapes: legend of `runtime.models.decoder`, plus P prefixes,
R of them in a block, F alternatives, N drafted tokens, J streams, E width of the exit features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runtime.backends.backend import Backend, prefill_pieces
from runtime.backends.eager import EagerBackend
from runtime.backends.sequences import Branches, Text
from runtime.drafters.language_model.draft_passes import DraftConfig, DraftPasses, DraftStates
from runtime.drafters.streams import StreamModel
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.row_invariance import Linear
from runtime.models.vocabulary import OutputRows, all_ids, ranked_ids


class DraftModel(nn.Module, DraftPasses):
    """A `Decoder` with few layers, a reduced head, and optional fusion of exit features.

    `embedding` and `lm_head` are the target's rows and never trained; `kept_ids` maps draft ids to target ids.
    """

    decoder: Decoder
    fuse: Linear | None
    kept_ids: Tensor

    def __init__(self, target_config: ModelConfig, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        shape = replace(target_config, num_layers=len(config.source_layers), tie_embeddings=False)
        self.decoder = Decoder(shape)
        self.decoder.lm_head = Linear(shape.hidden_size, config.vocab_size, bias=False)
        width = len(config.exit_features) * shape.hidden_size
        self.fuse = Linear(width, shape.hidden_size, bias=False) if width else None
        self.streams: StreamModel | None = None
        self.register_buffer("kept_ids", all_ids(config.vocab_size))
        self.output = OutputRows(self.kept_ids, self.decoder.lm_head.weight)
        self.backend = None
        self._product: Callable[[Any], Any] | None = None

    def fused(self, features_BTE: Tensor) -> Tensor:
        """See `DraftPasses`."""
        product = self._product or self.fuse
        assert product is not None, "a draft that reads no features"
        added: Tensor = product(features_BTE)
        return added

    def run_on(self, backend: Backend) -> None:
        """See `DraftPasses`."""
        self.backend = backend
        if not backend.has_readable_cache:
            self.streams, self.config = None, replace(self.config, streams=None)
        if self.kept_ids.device != backend.device:
            self.to(backend.device)
            self.output.move_to(backend.device)
        self.output.run_on(backend)
        if self.fuse is not None:
            self._product = backend.product(self.fuse.weight.detach())

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's embedding and the kept rows of its output head, frozen."""
        weight = target.embedding.weight
        self.kept_ids = kept_ids
        self.decoder.embedding.weight = nn.Parameter(weight, requires_grad=False)
        self.decoder.lm_head.weight = nn.Parameter(
            target.lm_head.weight[kept_ids].to(weight.dtype), requires_grad=False
        )
        self.output = OutputRows(kept_ids, self.decoder.lm_head.weight.detach(), target.lm_head.weight.detach())

    def on_a_backend(self) -> Backend:
        """Return its back end: torch's, if it had none."""
        if self.backend is None:
            self.run_on(EagerBackend(self.decoder))
        assert self.backend is not None, "a draft that stayed without a back end"
        return self.backend

    def of_positions_before(self, features_TE: Tensor | None, count: int) -> Tensor | None:
        """Return features as the first `count` tokens read them: of the position before, and none of the first."""
        if features_TE is None:
            return None
        weight = self.decoder.embedding.weight
        shifted_TE = torch.zeros(count, features_TE.shape[-1], dtype=weight.dtype, device=weight.device)
        shifted_TE[1:] = features_TE[: count - 1]
        return shifted_TE

    def add_streams(self) -> StreamModel:
        """Add untrained streams of the sizes in `config` to the layers as they are now, and return them."""
        assert self.config.streams is not None, "a draft without sizes of streams"
        self.streams = StreamModel(self.decoder, self.config.streams)
        return self.streams


_BLOCK_ROWS = 32
"""Prefixes side by side, and rows of the text after its prompt: as few as a lane may have at once."""


class Rollouts(NamedTuple):
    """Drafted target ids; row i follows prefix `ids[: start + i]`.

    `tokens` [P, N] are the greedy continuation, `alternatives` [P, N, F] the best ids at each drafted place, best
    first; `stream_hits` [P, N] says how many tokens in a row the streams predict right after each drafted one.
    """

    tokens: Tensor
    alternatives: Tensor
    stream_hits: Tensor


@torch.inference_mode()
def rollouts_everywhere(
    draft: DraftModel,
    ids: Sequence[int],
    *,
    start: int,
    num_tokens: int,
    num_alternatives: int,
    features_TE: Tensor | None,
) -> Rollouts:
    """Draft `num_tokens` tokens after each of the prefixes `ids[:start]`, ..., `ids[: len(ids) - 1]`.

    `ids` is a committed text, `start` the length of its prompt, `num_alternatives` the best ids to report at each
    drafted place. Row t of `features_TE` is what `normalise_features` returned for position t, for at least `len(ids)`
    - 2 positions; drafted positions have none. Raises `ValueError` if `start` is not the length of a prefix.
    """
    if not 1 <= start < len(ids):
        raise ValueError(f"start {start} is outside 1..{len(ids) - 1}")
    draft.output.add_prompt_tokens(ids[:start])
    num_slots = len(ids) + num_tokens + (draft.config.streams.num_streams if draft.config.streams else 0)
    num_branches = min(_BLOCK_ROWS, len(ids) - start)
    backend = draft.on_a_backend()
    backend.prepare(
        draft.plan(
            num_slots=num_slots,
            num_prompt=start,
            rows=(_BLOCK_ROWS,),
            with_features=features_TE is not None,
            num_branches=num_branches,
        )
    )
    text, branches = backend.new_text(), backend.new_branches(num_branches)
    text.start(len(ids) - 1)
    branches.start(num_slots)
    states = _encode(draft, ids, start, features_TE, text)
    blocks, guesses = [], []
    for first in range(start, len(ids), _BLOCK_ROWS):
        lengths = range(first, min(first + _BLOCK_ROWS, len(ids)))
        branches.follow(text, num_final=first, stop=lengths[-1])
        last = states.at(slice(lengths[0] - 1, lengths[-1]))
        block, guessed = _roll_out(draft, last, lengths, branches, (num_tokens, num_alternatives))
        blocks.append(block)
        guesses.append(guessed)
    alternatives = torch.cat(blocks)
    tokens = alternatives[..., 0]
    return Rollouts(tokens=tokens, alternatives=alternatives, stream_hits=_hits(tokens, torch.cat(guesses)))


def _encode(draft: DraftModel, ids: Sequence[int], start: int, features_TE: Tensor | None, text: Text) -> DraftStates:
    """Read all tokens but the last into the cache, the prompt as a lane prefills it; return their states."""
    count = len(ids) - 1
    ids_T, shifted_TE = torch.tensor(ids[:count]), draft.of_positions_before(features_TE, count)
    blocks = [(first, min(first + _BLOCK_ROWS, count)) for first in range(start - 1, count, _BLOCK_ROWS)]
    states = [
        draft.step(
            ids_T[first:stop],
            positions=torch.arange(first, stop),
            cache=text,
            features_TE=None if shifted_TE is None else shifted_TE[first:stop],
        )
        for first, stop in (*prefill_pieces(start - 1), *blocks)
    ]
    return DraftStates(*map(torch.cat, zip(*states, strict=True)))


def _roll_out(
    draft: DraftModel, states: DraftStates, lengths: Sequence[int], branches: Branches, counts: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the best target ids [R, N, F] after prefixes whose last rows had `states`, and guesses [R, N, J]."""
    num_tokens, num_alternatives = counts
    columns, guesses = [], []
    for step in range(num_tokens):
        best = draft.output.ids[ranked_ids(draft.output.logits(states.hidden_TD), num_alternatives)]
        columns.append(best)
        positions = [length + step for length in lengths]
        guesses.append(_guess(draft, states.entering_TD, positions, branches))
        if step == num_tokens - 1:
            break
        rows = branches.rows(slice(len(lengths)), [[position] for position in positions])
        entering_R1D, hidden_R1D = draft.run(best[:, :1], positions=rows.positions_RT, cache=rows)
        states = DraftStates(entering_R1D[:, 0], hidden_R1D[:, 0])
    return torch.stack(columns, dim=1), torch.stack(guesses, dim=1)


def _guess(draft: DraftModel, entering_RD: Tensor, positions: Sequence[int], branches: Branches) -> Tensor:
    """Return the target ids that streams expect after the proposals at `positions`, [R, J]; J is 0 without streams."""
    num_streams = 0 if draft.streams is None else draft.streams.config.num_streams
    if not num_streams:  # a back end need not know rows that are none
        return draft.output.ids.new_empty(len(positions), 0)  # type: ignore[no-any-return]
    rows = branches.rows(slice(len(positions)), [range(place, place + num_streams) for place in positions])
    own_R1 = torch.tensor(positions, device=entering_RD.device)[:, None] - 1
    guessed_R1J = draft.guess(entering_RD[:, None], positions=own_R1, cache=rows, num_streams=num_streams)
    return draft.output.ids[guessed_R1J[:, 0]]  # type: ignore[no-any-return]


def _hits(tokens_PN: Tensor, guesses_PNJ: Tensor) -> Tensor:
    num_tokens, num_streams = guesses_PNJ.shape[1:]
    padded = torch.nn.functional.pad(tokens_PN, (0, num_streams), value=-1)
    following_PNJ = padded.unfold(1, num_tokens, 1).transpose(1, 2)[..., 1:]
    return (guesses_PNJ == following_PNJ).cumprod(dim=-1).sum(dim=-1)
