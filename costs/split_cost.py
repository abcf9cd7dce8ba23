"""The cost of a layer split: the target's layers are on several devices, which take turns and hand over hidden states.

A call of the part `layer` costs what the mean layer of the split costs, so that `costs.prices.pass_s` adds up a pass as
on any other lane.
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

_PREFILL: Final = Part("prefill")
_OF_LAYERS: Final = (LAYER, _PREFILL)
"""Parts that all devices compute, each for its layers; the last device computes all other parts."""
_ROWS_AT_ONCE: Final = 512
"""Rows that llama.cpp computes at once by default (`-ub`)."""
FEWEST_COPIED: Final = 32
"""From this number of rows on, llama.cpp copies the CPU's weights to a GPU and multiplies there (its
GGML_OP_OFFLOAD_MIN_BATCH)."""


class SplitPart(NamedTuple):
    """The share of a target on one device.

    Attributes:
        cost: the cost of the whole target on this device.
        num_layers: number of layers here, with their KV caches.
        num_experts: number of layers whose experts are here, in mean layers; differs from `num_layers` if experts are
            on another device than their layer.
        errs_as: a label; errors of devices with the same label are fully correlated.
    """

    device: str
    cost: LaneCost
    num_layers: float
    num_experts: float
    errs_as: str


class Handover(NamedTuple):
    """A path, of one link or several, that hidden states take `times` times in a pass."""

    times: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class SplitCost:
    """A `costs.cost_model.LaneCost` of several devices that have different layers of a target.

    Experts were not measured separately: their time is their share of a layer's bytes, for the experts that the rows
    use. For prompts and large batches the CPU's weights are copied to the first GPU, which computes with them.

    Attributes:
        parts: the devices in the order of a pass; the last one has the `lm_head` and what drafts on this lane.
        has_host: whether the first part is on the CPU.
        handovers: the paths between the parts, in the order of a pass.
        state_bytes: bytes of the hidden state of a row.
        shape, weights: the target's shape and its weight format.
    """

    parts: tuple[SplitPart, ...]
    handovers: tuple[Handover, ...]
    state_bytes: float
    shape: ModelShape
    weights: str
    has_host: bool = False

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        if part not in _OF_LAYERS:
            return self._last(part).seconds(part, rows, contexts)
        return self._shared_s(part, rows) + self._caches_s(part, rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        if part.kind == "exit":  # the mean layer says nothing about the layers up to an exit
            return f"nothing is known of the {part} of a target that is split over devices"
        costs = [one.cost for one in self.parts] if part in _OF_LAYERS else [self.parts[-1].cost]
        return next(filter(None, (cost.missing(part, rows, contexts) for cost in costs)), None)

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`; reading and computing have the same time, since they are not told apart here."""
        if part not in _OF_LAYERS:
            return self._last(part).shared(part, rows)
        num_bytes = sum(self._share(part, one, rows) * one.cost.shared(part, rows).num_bytes for one in self.parts)
        return Shared(num_bytes, *[self._shared_s(part, rows)] * 2)

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        if part not in _OF_LAYERS:
            return self._last(part).own(part, rows, contexts)
        num_bytes = [one.num_layers * one.cost.own(part, rows, contexts).num_bytes for one in self.parts]
        return Own(np.sum(num_bytes, axis=0) / self.shape.num_layers, *[self._caches_s(part, rows, contexts)] * 2)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        if part not in _OF_LAYERS:
            return self._last(part).facts(part)
        facts = {one.device: one.cost.facts(part) for one in self.parts}
        return PartFacts(
            self.relative_error({device: one.relative_error for device, one in facts.items()}),
            "; ".join(dict.fromkeys(one.source for one in facts.values())),
            min(one.most_positions for one in facts.values()),
        )

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each device in the time of a pass of one row."""
        seconds = {one.device: self._share(LAYER, one, 1) * _without_caches_s(one.cost, LAYER, 1) for one in self.parts}
        return {device: time_s / sum(seconds.values()) for device, time_s in seconds.items()}

    def relative_error(self, errors: Mapping[str, float]) -> float:
        """Return the relative error of a pass, from those of its devices (0 for missing ones).

        Errors of devices with the same `errs_as` add up; those of others are independent.
        """
        by_label, shares = defaultdict[str, float](float), self.shares
        for one in self.parts:
            by_label[one.errs_as] += shares[one.device] * errors.get(one.device, 0.0)
        return hypot(*by_label.values())

    def _last(self, part: Part) -> LaneCost:
        if part.kind == "exit":
            raise ProfileError(self.missing(part, 0, np.zeros(1)))
        return self.parts[-1].cost

    def _shared_s(self, part: Part, rows: float) -> float:
        """Return the seconds of the mean layer, or of the whole prefill, without reading KV caches."""
        crossing_s = sum(
            times * (latency_s + rows * self.state_bytes / bytes_per_s)
            for times, latency_s, bytes_per_s in self.handovers
        )
        costs = {one.device: one.cost for one in self.parts}
        if rows >= FEWEST_COPIED and self.has_host:
            host, first, *_ = self.parts
            costs[host.device] = first.cost
            copied_bytes = self._bytes_of(host, min(rows, _ROWS_AT_ONCE))
            num_copies = rows // _ROWS_AT_ONCE + (rows % _ROWS_AT_ONCE >= FEWEST_COPIED)
            crossing_s += num_copies * copied_bytes / self.handovers[0].bytes_per_s
        parts_s = sum(
            self._share(part, one, rows) * _without_caches_s(costs[one.device], part, rows) for one in self.parts
        )
        return parts_s + crossing_s / (self.shape.num_layers if part == LAYER else 1)

    def _share(self, part: Part, one: SplitPart, rows: float) -> float:
        """Return the share of the time of all layers on a device, without caches, that its own layers take."""
        if one.num_experts == one.num_layers:
            return one.num_layers / self.shape.num_layers
        weight_bytes = self.shape.layer_weight_bytes(self.weights, rows)
        known_bytes = one.cost.shared(LAYER, rows).num_bytes if part == LAYER else 0.0  # 0 in tables without bytes
        more_bytes = self._bytes_of(one, rows) - one.num_layers * weight_bytes
        return (one.num_layers + more_bytes / (known_bytes or weight_bytes)) / self.shape.num_layers

    def _bytes_of(self, one: SplitPart, rows: float) -> float:
        """Return the bytes of a device's weights that a pass of `rows` rows reads."""
        experts_bytes = (one.num_experts - one.num_layers) * self.shape.expert_bytes(self.weights, rows)
        return one.num_layers * self.shape.layer_weight_bytes(self.weights, rows) + experts_bytes

    def _caches_s(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """Return the seconds that reading KV caches adds to the mean layer or to prefill; a cache is with its layer."""
        added_s = [
            one.num_layers * (one.cost.seconds(part, rows, contexts) - _without_caches_s(one.cost, part, rows))
            for one in self.parts
        ]
        seconds: Floats = np.sum(added_s, axis=0) / self.shape.num_layers
        return seconds


def _without_caches_s(cost: LaneCost, part: Part, rows: float) -> float:
    _, reading_s, computing_s, least_s = cost.shared(part, rows)
    return max(reading_s, computing_s, least_s)
