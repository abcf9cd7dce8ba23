"""Rows of a batch with the rows a few positions before them: what heads that look ahead are trained on.

Every answer token is proposed by each of K heads, head k from the state k positions before the one that predicts
the token. Shapes: legend of `training.data.batch`, plus K heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from training.data.states import TargetStates

TOP_KS = (1, 3, 8)


def predicting_positions(states: TargetStates, index: int, num_heads: int) -> range:
    """Positions of a conversation whose next token belongs to the answer and that have `num_heads` before them."""
    row = states.conversations[index]
    return range(max(len(row.prompt) - 1, num_heads), len(row.ids) - 1)


def states_before(states: TargetStates, indices: Sequence[int], num_heads: int) -> list[Tensor]:
    """Last states of the target 0, 1, ... `num_heads` positions before each predicting one, [M, D] each."""
    parts: list[list[Tensor]] = [[] for _ in range(num_heads + 1)]
    for index in indices:
        places = predicting_positions(states, index, num_heads)
        if not places:
            continue
        rows = states.rows(states.layers[-1], index)[places.start - num_heads : places.stop]
        for shift, part in enumerate(parts):
            part.append(rows[num_heads - shift : len(rows) - shift])
    return [torch.cat(part).to(states.device) for part in parts]


class AgreementCount:
    """How often the target's token is among the best of each head, counted batch by batch."""

    def __init__(self, num_heads: int) -> None:
        self._hits = {(head, top_k): 0 for head in range(1, num_heads + 1) for top_k in TOP_KS}
        self._total = 0

    def add(self, logits: Sequence[Tensor], wanted_M: Tensor) -> None:
        """Count one batch.

        Args:
            logits: of every head, [M, V].
            wanted_M: the target's best kept id at each row.
        """
        self._total += len(wanted_M)
        for head, logits_MV in enumerate(logits, 1):
            best = logits_MV.topk(max(TOP_KS), dim=-1).indices == wanted_M[:, None]
            for top_k in TOP_KS:
                self._hits[head, top_k] += int(best[:, :top_k].any(-1).sum())

    @property
    def shares(self) -> Mapping[str, float]:
        """Counts as shares of the rows, by head and k."""
        return {
            f"agreement_head{head}_top{top_k}": hits / max(self._total, 1) for (head, top_k), hits in self._hits.items()
        }
