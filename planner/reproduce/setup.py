"""What the Mirror-SD paper decodes with (arXiv 2510.13161): its defaults, and the profile of the machine that follows.

Windows of 7 tokens, an exit after half of the layers, 8 candidates a row, one sequence. Vanilla speculation is taken to
have the same draft on the same devices, in turn with the target.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.overrides import with_overrides
from hwprofiles.placed import PlacedLink
from hwprofiles.platform import Platform
from planner.one_tokenizer import require_one_tokenizer
from sim.derived.derived_profile import Demand, DerivedProfile, derived_profile
from sim.derived.roofline import StoredModel

TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""3.5 hidden steps for 7 tokens, the middle of what the paper says."""
_HALVINGS: Final = 40


def mean_steps(rate: float, num_tokens: int, num_streams: int) -> float:
    """Return steps of a window whose guesses are right with a rate, given that those before them in their step are."""
    left = [0.0] * (num_tokens + 1)  # steps after so many tokens
    for num_drafted in range(num_tokens - 1, 0, -1):
        num_guesses = min(num_streams, num_tokens - num_drafted - 1)
        shares = [rate**hits * (1 - rate if hits < num_guesses else 1) for hits in range(num_guesses + 1)]
        then = left[num_drafted + 1 : num_drafted + num_guesses + 2]
        left[num_drafted] = 1 + sum(share * steps for share, steps in zip(shares, then, strict=True))
    return 1 + left[1]


def stream_rate() -> float:
    """Return the rate of right guesses at which a window takes as many steps as the paper's."""
    steps, low, high = WINDOW / TOKENS_PER_HIDDEN_STEP, 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_steps(middle, WINDOW, NUM_STREAMS) > steps else (low, middle)
    return (low + high) / 2


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
    def of(cls, platform: Platform) -> "Machine":
        """Return it with the target on the first group, or else device, of GPUs, and the draft on that of NPUs.

        Raises `ConfigError` where the platform has none of these.
        """
        return cls(platform, _first(platform, "gpu"), _first(platform, "npu"))

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

    def with_graphs(self, rows: Sequence[int]) -> "Machine":
        """Return the machine where draft devices of static shapes have a graph for each number in `rows`."""
        static = [name for name in self.draft_members if self.platform.device(name).static_shapes]
        values = {f"{name}.row_buckets": str(sorted(set(rows))) for name in static}
        return replace(self, platform=with_overrides(self.platform, values))

    def _links(self) -> dict[ConstantName, list[PlacedLink]]:
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
    raise ConfigError(f"platform {platform.name!r} has no {kind}; its devices are {', '.join(platform.devices)}")


WINDOW: Final = 7
EXIT_TOP_K: Final = 8
NUM_STREAMS: Final = 2
PROMPT_TOKENS: Final = 512
ROUNDS: Final = 4
_ROWS: Final = (1, 2, EXIT_TOP_K * (WINDOW + 1))
"""Rows of the draft's steps: a token, a token and one that it has not read yet, and all branches."""
_STREAM_ROWS: Final = (NUM_STREAMS, 1 + NUM_STREAMS, NUM_STREAMS * _ROWS[-1], (1 + NUM_STREAMS) * _ROWS[-1])
"""Rows of steps that propose stream tokens or verify them, of one token and of all branches."""
_STATE_BYTES: Final = 2
_FEWEST_LAYERS: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Two models on a machine whose draft devices are compiled for the rows that occur, see `Setup.of`."""

    machine: Machine
    target: StoredModel
    draft: StoredModel

    @classmethod
    def of(cls, machine: Machine, target: StoredModel, draft: StoredModel) -> "Setup":
        """Compile the draft, of the same tokenizer, for what the paper's schedules ask of it."""
        require_one_tokenizer(target.shape, draft.shape)
        if target.shape.num_layers < _FEWEST_LAYERS:
            msg = f"{target.shape.name} has {target.shape.num_layers} layer: an exit after half of them needs two"
            raise ConfigError(msg)
        return cls(machine=machine.with_graphs([*_ROWS, *_STREAM_ROWS]), target=target, draft=draft)

    @property
    def exit_layer(self) -> int:
        """Return the number of layers after which the exit is taken."""
        return self.target.shape.num_layers // 2

    @property
    def plain(self) -> Schedule:
        """Return the schedule of plain decoding: the target alone."""
        return Schedule(method="autoregressive", target_lane=self.machine.target_lane)

    @property
    def in_turn(self) -> Schedule:
        """Return vanilla speculation: the draft, then the target."""
        return self._drafting(method="speculative")

    @property
    def mirror(self) -> Schedule:
        """Return Mirror-SD: the draft takes branches from the exit further while the target goes on."""
        return self._drafting(method="mirror", root_source="exit", exit_layer=self.exit_layer, exit_top_k=EXIT_TOP_K)

    def streaming(self, schedule: Schedule) -> Schedule:
        """Return the same with a draft whose streams propose tokens in every step."""
        return schedule.model_copy(update={"draft_streams": NUM_STREAMS})

    def profile(self, constants: Constants) -> DerivedProfile:
        """Return the machine's profile; all-reduces of a draft of parallel tracks sum up states as wide as a track."""
        lane_name = self.machine.draft_lane
        demand = Demand(
            target=self.target,
            draft=self.draft,
            lanes=(self.machine.target_lane, lane_name),
            exits=(self.exit_layer,),
        )
        derived = derived_profile(self.machine.with_constants(constants), demand)
        lane = derived.profile.lane(lane_name)
        if lane.group is None:
            return derived
        group = lane.group.model_copy(update={"reduced_bytes_per_row": self.draft.shape.hidden_size * _STATE_BYTES})
        lane = lane.model_copy(update={"group": group})
        lanes = tuple(lane if one.name == lane_name else one for one in derived.profile.lanes)
        return replace(derived, profile=derived.profile.model_copy(update={"lanes": lanes}))

    def _drafting(self, **settings: Any) -> Schedule:
        return Schedule(
            target_lane=self.machine.target_lane,
            draft_lane=self.machine.draft_lane,
            drafter=self.draft.shape.name,
            num_speculative_tokens=WINDOW,
            **settings,
        )
