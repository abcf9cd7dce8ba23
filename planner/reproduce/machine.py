"""The machine of a published table: a platform, the lanes of target and draft, and what nobody published of it.

The constants are few and belong to the machine and its models, never to a cell of a table::

    link_latency_s   one way between two machines, software included
    handover_s       one way between the target's and the draft's device of one machine
    exit_coverage    how often a round's outcome is among the early exit's candidates
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from decoding.errors import ConfigError
from hwprofiles.overrides import with_overrides
from hwprofiles.placed import PlacedLink
from hwprofiles.platform import Platform

ConstantName = Literal["link_latency_s", "handover_s", "exit_coverage"]
Constants = Mapping[ConstantName, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """One constant, what it would be by data sheets or the nearest measurement, and the physical bounds of a fit."""

    name: ConstantName
    datasheet: float
    low: float
    high: float
    source: str


EXIT_COVERAGE: Final = Unknown(
    name="exit_coverage",
    datasheet=0.66,
    low=0.3,
    high=0.95,
    source="eight candidates of a trained exit after half the layers of SmolLM2-135M cover 0.66 of all tokens, "
    "untrained ones 0.3; 0.83 are reported of a 70B model trained for its exits, 0.95 is our bound",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A platform with the lanes of target and draft."""

    platform: Platform
    target_lane: str
    draft_lane: str

    @classmethod
    def of(cls, platform: Platform, target_lane: str | None = None, draft_lane: str | None = None) -> Machine:
        """Without names the first group, or else device, of GPUs is the target's, and of NPUs the draft's.

        Raises:
            ConfigError: there is no such lane, the platform has no device of a kind, or both lanes share one.
        """
        machine = cls(platform, target_lane or _first(platform, "gpu"), draft_lane or _first(platform, "npu"))
        if shared := set(machine.target_members) & set(machine.draft_members):
            msg = f"target on {machine.target_lane} and draft on {machine.draft_lane} share {', '.join(sorted(shared))}"
            raise ConfigError(msg)
        return machine

    @property
    def target_members(self) -> tuple[str, ...]:
        """Devices of the target."""
        return self.platform.members(self.target_lane)

    @property
    def draft_members(self) -> tuple[str, ...]:
        """Devices of the draft."""
        return self.platform.members(self.draft_lane)

    def unknowns(self) -> tuple[Unknown, ...]:
        """Return the constants that count on this machine, with what its sheets say of them."""
        return (*self._unknown_links(), EXIT_COVERAGE)

    def datasheet(self) -> dict[ConstantName, float]:
        """Return all of them by data sheets."""
        return {one.name: one.datasheet for one in self.unknowns()}

    def with_constants(self, constants: Constants) -> Platform:
        """Return the platform with these numbers."""
        values = {
            f"{'-'.join(link.between)}.latency_s": constants[name]
            for name, links in self._links().items()
            for link in links
        }
        return with_overrides(self.platform, values)

    def with_graphs(self, rows: Sequence[int]) -> Machine:
        """Return the machine where draft devices of static shapes have a graph for each of so many rows."""
        static = [name for name in self.draft_members if self.platform.device(name).static_shapes]
        values = {f"{name}.row_buckets": str(sorted(set(rows))) for name in static}
        return replace(self, platform=with_overrides(self.platform, values))

    def _links(self) -> dict[ConstantName, list[PlacedLink]]:
        """Links by the constant that is their latency."""
        targets, drafts = set(self.target_members), set(self.draft_members)
        found: dict[ConstantName, list[PlacedLink]] = {"link_latency_s": [], "handover_s": []}
        for link in self.platform.links:
            ends = set(link.between)
            if ends <= targets or ends <= drafts:
                found["link_latency_s"].append(link)
            elif ends & targets and ends & drafts:
                found["handover_s"].append(link)
        return {name: links for name, links in found.items() if links}

    def _unknown_links(self) -> Iterator[Unknown]:
        for name, links in self._links().items():
            latency = links[0].latency_s
            assert latency is not None, "a link of a platform has a latency"
            source = f"{latency.status}: {latency.source}"
            low, high = latency.lowest, latency.highest
            yield Unknown(name=name, datasheet=latency.value, low=low, high=high, source=source)


def _first(platform: Platform, kind: str) -> str:
    for lane in (*platform.groups, *platform.devices):
        if all(platform.device(member).kind == kind for member in platform.members(lane)):
            return lane
    msg = f"platform {platform.name!r} has no {kind}; name a lane: {', '.join((*platform.groups, *platform.devices))}"
    raise ConfigError(msg)
