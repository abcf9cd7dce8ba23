"""How streams learn, whichever decoder they belong to: the target (`training.tasks.target_streams`) or a draft.

The streams of some positions of a text learn the decoder's own softmax at the positions they look ahead to (soft
cross-entropy; the paper takes the text's tokens). The decoder's own loss has no weight, because its weights are not
trained: the paper's lossless mode.

Shapes: legend of `training.data.batch`, plus R rows per conversation that have streams, J streams of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.drafters.streams.model import Keys, StreamConfig, StreamModel, stream_mask
from runtime.models.decoder import Decoder
from training.recipe import StreamSizes
from training.tasks.distillation import cross_entropy_to_mean_rows, decayed_mean, mean_rows

TOP_KS = (1, 3, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamTexts:
    """What a decoder computes for some texts, padded on the right.

    Attributes:
        x_BTD: its states after the layer where streams begin.
        keys: what its rows leave in the layers above.
        predicting: positions that predict a token of an answer, [B, T] bool, M of them true.
        final_MD: its normalised final states there: what streams learn to foresee.
    """

    x_BTD: Tensor
    keys: Keys
    predicting: Tensor
    final_MD: Tensor


class StreamRows(NamedTuple):
    """Rows that have streams, and what each stream has to guess."""

    positions: Tensor
    """Of the rows, [B, R]; conversations with fewer rows repeat one."""
    ahead: Tensor
    """The position whose softmax each stream learns, [B, R, J]; the last of the text where the text is shorter."""
    has_target: Tensor
    """Whether that position predicts a token of the answer, and the row is no repetition, [B, R, J] bool."""


class StreamLearner:
    """The loss of streams, and their agreement with the decoder they belong to."""

    def __init__(self, module: StreamModel, head_VD: Tensor, sizes: StreamSizes) -> None:
        """Args: the streams; the head that reads them, bfloat16; how they are trained."""
        self._module, self._head_VD, self._sizes = module, head_VD, sizes

    def loss(self, texts: StreamTexts, generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy of every stream, farther ones weighing less; counts the rows that had streams."""
        rows, hidden_BRJD = self._run(texts, generator)
        mean_MD = mean_rows(texts.final_MD, self._head_VD)
        place_BT = (texts.predicting.flatten().cumsum(0) - 1).view_as(texts.predicting)
        losses = []
        for stream, chosen_BR in enumerate(rows.has_target.unbind(-1)):
            places_N = place_BT.gather(1, rows.ahead[:, :, stream])[chosen_BR]
            student_ND = hidden_BRJD[:, :, stream][chosen_BR]
            losses.append(cross_entropy_to_mean_rows(student_ND, mean_MD[places_N], self._head_VD))
        return decayed_mean(losses, self._sizes.stream_decay), int(rows.has_target[:, :, 0].sum())

    @torch.no_grad()
    def agreement(self, batches: Iterable[StreamTexts]) -> Mapping[str, float]:
        """Share of positions where the decoder's own token is among each stream's k best."""
        hits = torch.zeros(self._sizes.num_streams, len(TOP_KS))
        totals = torch.zeros(self._sizes.num_streams, 1)
        for texts in batches:
            rows, hidden_BRJD = self._run(texts)
            wanted_BT = torch.full(texts.predicting.shape, -1, device=texts.predicting.device)
            wanted_BT[texts.predicting] = (texts.final_MD.to(self._head_VD.dtype) @ self._head_VD.T).argmax(-1)
            for stream, chosen_BR in enumerate(rows.has_target.unbind(-1)):
                wanted_N = wanted_BT.gather(1, rows.ahead[:, :, stream])[chosen_BR]
                logits_NV = hidden_BRJD[:, :, stream][chosen_BR].to(self._head_VD.dtype) @ self._head_VD.T
                found_NK = logits_NV.topk(max(TOP_KS)).indices == wanted_N[:, None]
                hits[stream] += torch.stack([found_NK[:, :top_k].any(-1).sum() for top_k in TOP_KS]).cpu()
                totals[stream] += len(found_NK)
        shares = (hits / totals.clamp(min=1)).tolist()
        return {
            f"agreement_stream{stream}_top{top_k}": share
            for stream, row in enumerate(shares, 1)
            for top_k, share in zip(TOP_KS, row, strict=True)
        }

    def _run(self, texts: StreamTexts, generator: torch.Generator | None = None) -> tuple[StreamRows, Tensor]:
        """The rows that have streams, and the streams' normalised hidden states [B, R, J, D]."""
        x_BTD, sizes = texts.x_BTD, self._sizes
        rows = choose_rows(texts.predicting.cpu(), sizes.rows_per_conversation, sizes.num_streams, generator)
        rows = StreamRows(*(part.to(x_BTD.device) for part in rows))
        past_BRS = torch.arange(x_BTD.shape[1], device=x_BTD.device) <= rows.positions[..., None]
        visible_BRS = torch.zeros(past_BRS.shape, dtype=x_BTD.dtype, device=x_BTD.device)
        visible_BRS.masked_fill_(~past_BRS, float("-inf"))
        with torch.autocast(x_BTD.device.type, dtype=torch.bfloat16):
            hidden_BRJD = self._module(
                x_BTD.gather(1, rows.positions[..., None].expand(-1, -1, x_BTD.shape[-1])),
                positions=rows.positions,
                mask=stream_mask(visible_BRS[:, None], sizes.num_streams),
                keys=texts.keys,
            )
        return rows, hidden_BRJD


def stream_config(sizes: StreamSizes) -> StreamConfig:
    """What a `StreamModel` is built from."""
    return StreamConfig(num_streams=sizes.num_streams, start_layer=sizes.start_layer, rank=sizes.rank)


def start_streams(streams: StreamModel, decoder: Decoder, seed: int) -> None:
    """Seeded low-rank changes, which do nothing yet; all other weights of the streams are zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in streams.trained.items():
        if name.endswith(".narrow.weight"):
            torch.nn.init.normal_(weight, std=decoder.config.hidden_size**-0.5, generator=generator)


def choose_rows(predicting: Tensor, count: int, num_streams: int, generator: torch.Generator | None) -> StreamRows:
    """Up to `count` rows of each conversation that look ahead to at least one of its own positions.

    Args:
        predicting: which positions predict a token of the answer, [B, T]; one run of them in each row.
        count: rows at most.
        num_streams: positions that each row looks ahead.
        generator: of the random choice; None takes rows that are spread evenly.
    """
    firsts = predicting.int().argmax(-1)
    stops = firsts + predicting.sum(-1)
    spans = list(zip(firsts.tolist(), stops.tolist(), strict=True))
    chosen = [_some(first, stop - 1, count, generator) for first, stop in spans]
    width = max(1, *map(len, chosen))
    padded = [[*row, *[first] * (width - len(row))] for row, (first, _) in zip(chosen, spans, strict=True)]
    positions = torch.tensor(padded)
    ahead = positions[..., None] + torch.arange(1, num_streams + 1)
    is_row = torch.arange(width) < torch.tensor([[len(row)] for row in chosen])
    has_target = (ahead < stops[:, None, None]) & is_row[..., None]
    return StreamRows(positions, ahead.clamp(max=predicting.shape[1] - 1), has_target)


def _some(first: int, stop: int, count: int, generator: torch.Generator | None) -> Sequence[int]:
    """At most `count` of the positions first..stop - 1, ascending."""
    total = stop - first
    if total <= count:
        return range(first, stop)
    if generator is None:
        return [first + place * total // count for place in range(count)]
    places: list[int] = torch.randperm(total, generator=generator)[:count].sort().values.tolist()
    return [first + place for place in places]
