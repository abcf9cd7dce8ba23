"""The cost of a target whose layers are on several devices that take turns: the sum of its parts, and handovers.

`costs.prices.pass_s` adds up a pass by the mean layer, so that a split is a lane like any other.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from typing import Final, NamedTuple

import numpy as np

from costs.cost_model import Floats, LaneCost, Own, Part, PartFacts, Shared
from costs.round_plan import LAYER
from decoding.errors import ProfileError
from hwprofiles.model_shape import ModelShape

_UNSPLIT: Final = ("exit", "prefill")
"""Parts of a target that nothing is known of where it is split: layers up to an exit are not as slow as those after it,
and long prompts are read on cards to which weights of the CPU's layers are copied."""


class SplitPart(NamedTuple):
    """What one device has of a target.

    Attributes:
        cost: of the whole target there.
        num_layers: layers, with their caches.
        num_experts: layers whose experts it has, in mean layers of the target; other than `num_layers` where experts
            are elsewhere.
        errs_as: equal for devices that err together.
    """

    device: str
    cost: LaneCost
    num_layers: float
    num_experts: float
    errs_as: str


class Handover(NamedTuple):
    """A way that states take so many times in a pass."""

    times: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class SplitCost:
    """A `costs.cost_model.LaneCost` of devices that have different layers of a target.

    Experts take their share of a layer's bytes, by the experts that the rows touch: nothing was measured of them alone.

    Attributes:
        parts: in the order of a pass; the last one has the `lm_head`, and what drafts on this lane.
        handovers: of states between parts.
        state_bytes: of a row that is handed over.
        shape, weights: of the target.
    """

    parts: tuple[SplitPart, ...]
    handovers: tuple[Handover, ...]
    state_bytes: float
    shape: ModelShape
    weights: str

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        if part != LAYER:
            return self._last(part).seconds(part, rows, contexts)
        return self._layer_s(rows) + self._caches_s(rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        if part.kind in _UNSPLIT:
            return f"nothing is known of the {part} of a target that is split over devices"
        costs = [one.cost for one in self.parts] if part == LAYER else [self.parts[-1].cost]
        return next(filter(None, (cost.missing(part, rows, contexts) for cost in costs)), None)

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`; as in a table, what reads and what computes is not told apart."""
        if part != LAYER:
            return self._last(part).shared(part, rows)
        num_bytes = sum(self._weight(one, rows) * one.cost.shared(LAYER, rows).num_bytes for one in self.parts)
        return Shared(num_bytes / self.shape.num_layers, *[self._layer_s(rows)] * 2)

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        if part != LAYER:
            return self._last(part).own(part, rows, contexts)
        num_bytes = [one.num_layers * one.cost.own(LAYER, rows, contexts).num_bytes for one in self.parts]
        return Own(np.sum(num_bytes, axis=0) / self.shape.num_layers, *[self._caches_s(rows, contexts)] * 2)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        if part != LAYER:
            return self._last(part).facts(part)
        facts = {one.device: one.cost.facts(LAYER) for one in self.parts}
        return PartFacts(
            self.relative_error({device: one.relative_error for device, one in facts.items()}),
            "; ".join(dict.fromkeys(one.source for one in facts.values())),
            min(one.most_positions for one in facts.values()),
        )

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each device in the time of a pass over one row."""
        seconds = {one.device: self._weight(one, 1) * _without_caches_s(one.cost, 1) for one in self.parts}
        return {device: time_s / sum(seconds.values()) for device, time_s in seconds.items()}

    def relative_error(self, errors: Mapping[str, float]) -> float:
        """Return the relative error of a pass by those of its devices (none: 0), of which equal ones err together."""
        together, shares = defaultdict[str, float](float), self.shares
        for one in self.parts:
            together[one.errs_as] += shares[one.device] * errors.get(one.device, 0.0)
        return hypot(*together.values())

    def _last(self, part: Part) -> LaneCost:
        if part.kind in _UNSPLIT:
            raise ProfileError(self.missing(part, 0, np.zeros(1)))
        return self.parts[-1].cost

    def _layer_s(self, rows: float) -> float:
        """Return the seconds of the mean layer without caches."""
        crossing_s = sum(
            times * (latency_s + rows * self.state_bytes / bytes_per_s)
            for times, latency_s, bytes_per_s in self.handovers
        )
        parts_s = sum(self._weight(one, rows) * _without_caches_s(one.cost, rows) for one in self.parts)
        return (parts_s + crossing_s) / self.shape.num_layers

    def _weight(self, part: SplitPart, rows: float) -> float:
        """Return how many of its device's layers a part takes as long as, without caches."""
        more = part.num_experts - part.num_layers
        if not more:
            return part.num_layers
        weight_bytes = self.shape.layer_weight_bytes(self.weights, rows)
        layer_bytes = part.cost.shared(LAYER, rows).num_bytes or weight_bytes  # tables may tell none
        return part.num_layers + more * self.shape.expert_bytes(self.weights, rows) / layer_bytes

    def _caches_s(self, rows: float, contexts: Floats) -> Floats:
        """Return the seconds that caches add to the mean layer."""
        added_s = [
            one.num_layers * (one.cost.seconds(LAYER, rows, contexts) - _without_caches_s(one.cost, rows))
            for one in self.parts
        ]
        seconds: Floats = np.sum(added_s, axis=0) / self.shape.num_layers
        return seconds


def _without_caches_s(cost: LaneCost, rows: float) -> float:
    _, reading_s, computing_s, least_s = cost.shared(LAYER, rows)
    return max(reading_s, computing_s, least_s)
