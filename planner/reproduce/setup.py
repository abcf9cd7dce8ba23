"""The setup of the Mirror-SD paper (arXiv 2510.13161): its schedules, and the profile of its machine.

Windows of 7 tokens, an exit after half of the layers, 8 candidates per row, one sequence. Vanilla speculation is
assumed to use the same draft on the same devices, in turn with the target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform
from hwprofiles.platform_parts import PlacedLink
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import link_sheet
from planner.one_tokenizer import require_one_tokenizer
from planner.published.stream_rates import NUM_STREAMS, WINDOW
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import Demand, DerivedProfile, derived_profile
from sim.derived.roofline import StoredModel

FITTED: Final = "mirrorsd reproduce"
"""How the source of a latency in a platform's file begins if an earlier fit found the latency."""
ConstantName = Literal["link_latency_s", "handover_s", "exit_coverage"]
Constants = Mapping[ConstantName, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A constant to be fitted: its value by data sheets or the nearest measurement, and the physical bounds."""

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
    source="eight candidates of a trained exit after half the layers of SmolLM2-135M cover 0.66 of all tokens, those "
    "of an untrained exit 0.3; 0.83 was reported for a 70B model trained for its exits; 0.95 is our upper bound",
)


EXIT_TOP_K: Final = 8
PROMPT_TOKENS: Final = 512
ROUNDS: Final = 4
_ROWS: Final = (1, 2, EXIT_TOP_K * (WINDOW + 1))
"""Rows of the draft's steps: one token, one token and another that it has not read yet, and all branches."""
_STREAM_ROWS: Final = (NUM_STREAMS, 1 + NUM_STREAMS, NUM_STREAMS * _ROWS[-1], (1 + NUM_STREAMS) * _ROWS[-1])
"""Rows of draft steps with streams: the stream tokens without and with the token before, for one and all branches."""
_STATE_BYTES: Final = 2
_FEWEST_LAYERS: Final = 2
Arm = Literal["sd", "sd_streaming", "mirror", "mirror_streaming"]
"""Arms of the paper's ablations, the slowest first: in turn or mirror, each without and with streams."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Two models on a platform, the target on one of its lanes and the draft on another."""

    platform: Platform
    target_lane: str
    draft_lane: str
    target: StoredModel
    draft: StoredModel

    @classmethod
    def of(cls, platform: Platform, target: StoredModel, draft: StoredModel) -> "Setup":
        """Put the target on the first group of GPUs, or else the first GPU, and the draft likewise on NPUs.

        Draft devices with static shapes are compiled for the rows of the paper's schedules. Raises `ConfigError` if
        the platform has no GPU or no NPU, and `PlanError` for models with different tokenizers.
        """
        lanes = _first(platform, "gpu"), _first(platform, "npu")
        require_one_tokenizer(target.shape, draft.shape)
        if target.shape.num_layers < _FEWEST_LAYERS:
            msg = f"{target.shape.name} has {target.shape.num_layers} layer: an exit after half of them needs two"
            raise ConfigError(msg)
        static = [name for name in platform.members(lanes[1]) if platform.device(name).static_shapes]
        rows = str(sorted({*_ROWS, *_STREAM_ROWS}))
        compiled = with_overrides(platform, {f"{name}.row_buckets": rows for name in static})
        return cls(platform=compiled, target_lane=lanes[0], draft_lane=lanes[1], target=target, draft=draft)

    @property
    def exit_layer(self) -> int:
        """Return the number of layers after which the exit is taken."""
        return self.target.shape.num_layers // 2

    @property
    def plain(self) -> Schedule:
        """Return the schedule of plain decoding: the target alone."""
        return Schedule(method="autoregressive", target_lane=self.target_lane)

    @property
    def arms(self) -> dict[Arm, Schedule]:
        """Return the schedule of every arm; in mirror arms the roots of branches come from the exit."""
        drafting = partial(
            Schedule,
            target_lane=self.target_lane,
            draft_lane=self.draft_lane,
            drafter=self.draft.shape.name,
            num_speculative_tokens=WINDOW,
        )
        in_turn = partial(drafting, method="speculative")
        mirror = partial(
            drafting, method="mirror", root_source="exit", exit_layer=self.exit_layer, exit_top_k=EXIT_TOP_K
        )
        return {
            "sd": in_turn(),
            "sd_streaming": in_turn(draft_streams=NUM_STREAMS),
            "mirror": mirror(),
            "mirror_streaming": mirror(draft_streams=NUM_STREAMS),
        }

    def unknowns(self) -> tuple[Unknown, ...]:
        """Return the constants that matter on this machine, with their values by data sheets."""
        return (*self._unknown_links(), EXIT_COVERAGE)

    def datasheet(self) -> dict[ConstantName, float]:
        """Return the values of all constants by data sheets."""
        return {one.name: one.datasheet for one in self.unknowns()}

    def placed(self) -> dict[ConstantName, float]:
        """Return the constants of links as in the platform's file, which plans use."""
        return {name: links[0].latency_s.value for name, links in self._links().items() if links[0].latency_s}

    def with_constants(self, constants: Constants) -> Platform:
        """Return the platform with these latencies of links."""
        values = {
            f"{'-'.join(link.between)}.latency_s": constants[name]
            for name, links in self._links().items()
            for link in links
        }
        return with_overrides(self.platform, values)

    def profile(self, constants: Constants) -> DerivedProfile:
        """Return the machine's profile; all-reduces of a draft on a group exchange hidden states of its own width."""
        demand = Demand(
            target=self.target,
            draft=self.draft,
            lanes=(self.target_lane, self.draft_lane),
            exits=(self.exit_layer,),
        )
        derived = derived_profile(self.with_constants(constants), demand)
        lane = derived.profile.lane(self.draft_lane)
        if lane.group is None:
            return derived
        group = lane.group.model_copy(update={"reduced_bytes_per_row": self.draft.shape.hidden_size * _STATE_BYTES})
        lane = lane.model_copy(update={"group": group})
        lanes = tuple(lane if one.name == lane.name else one for one in derived.profile.lanes)
        return replace(derived, profile=derived.profile.model_copy(update={"lanes": lanes}))

    def _links(self) -> dict[ConstantName, list[PlacedLink]]:
        targets, drafts = (set(self.platform.members(lane)) for lane in (self.target_lane, self.draft_lane))
        joins = [link for link in self.platform.links if {*link.between} & targets and {*link.between} & drafts]
        sheets = {link.sheet for link in joins} - {None}
        found: dict[ConstantName, list[PlacedLink]] = {"link_latency_s": [], "handover_s": joins}
        for link in self.platform.links:
            ends = set(link.between)
            if ends <= targets or ends <= drafts:
                found["link_latency_s"].append(link)
            elif link not in joins and link.sheet in sheets:
                joins.append(link)  # a link of the same chip; otherwise the path through its CPU would be faster
        return {name: links for name, links in found.items() if links}

    def _unknown_links(self) -> Iterator[Unknown]:
        for name, links in self._links().items():
            latency = _before_a_fit(links[0])
            source, known = f"{latency.status}: {latency.source}", Assumption.of_quantity(name, latency)
            yield Unknown(name=name, datasheet=latency.value, low=known.low, high=known.high, source=source)


def _before_a_fit(link: PlacedLink) -> Quantity:
    """Return a link's latency, or its sheet's where the platform's file has what an earlier fit found."""
    latency = link.latency_s
    assert latency is not None, "a link of a platform has a latency"
    if link.sheet is not None and latency.source.startswith(FITTED):
        return link_sheet(link.sheet).latency_s or latency
    return latency


def _first(platform: Platform, kind: str) -> str:
    for lane in (*platform.groups, *platform.devices):
        if all(platform.device(member).kind == kind for member in platform.members(lane)):
            return lane
    devices = ", ".join(platform.devices)
    raise ConfigError(
        f"platform {platform.name!r} has no {kind}; its devices are {devices}. The target runs on a GPU and the draft "
        "on an NPU, as m2-ultra-x8, m4-max and lunar-lake have them"
    )
