"""What the Mirror-SD paper decodes with (arXiv 2510.13161): its defaults, and the profile of the machine that follows.

Windows of 7 tokens, an exit after half of the layers, 8 candidates a row, one sequence. Vanilla speculation is taken to
have the same draft on the same devices, in turn with the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.profile import LaneProfile, Profile
from planner.one_tokenizer import require_one_tokenizer
from planner.reproduce.machine import Constants, Machine
from sim.derived.derived_profile import Demand, DerivedProfile, derived_profile
from sim.derived.roofline import StoredModel

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
    def of(cls, machine: Machine, target: StoredModel, draft: StoredModel) -> Setup:
        """Compile the draft for what the paper's schedules ask of it.

        Raises:
            ConfigError: the target has no layer to take an exit after.
            PlanError: the draft has another tokenizer.
        """
        require_one_tokenizer(target.shape, draft.shape)
        if target.shape.num_layers < _FEWEST_LAYERS:
            msg = f"{target.shape.name} has {target.shape.num_layers} layer: an exit after half of them needs two"
            raise ConfigError(msg)
        return cls(machine=machine.with_graphs([*_ROWS, *_STREAM_ROWS]), target=target, draft=draft)

    @property
    def exit_layer(self) -> int:
        """Layers after which the exit is taken."""
        return self.target.shape.num_layers // 2

    @property
    def plain(self) -> Schedule:
        """The target alone."""
        return Schedule(method="autoregressive", target_lane=self.machine.target_lane)

    @property
    def in_turn(self) -> Schedule:
        """Vanilla speculation: the draft, then the target."""
        return self._drafting(method="speculative")

    @property
    def mirror(self) -> Schedule:
        """The draft takes branches from the exit further while the target goes on."""
        return self._drafting(method="mirror", root_source="exit", exit_layer=self.exit_layer, exit_top_k=EXIT_TOP_K)

    def streaming(self, schedule: Schedule) -> Schedule:
        """Return the same with a draft whose streams propose tokens in every step."""
        return schedule.model_copy(update={"draft_streams": NUM_STREAMS})

    def profile(self, constants: Constants) -> DerivedProfile:
        """Return the machine's profile; all-reduces of a draft of parallel tracks sum up states as wide as a track.

        Raises:
            ProfileError: sheets lack what no guess can stand in for, or nothing links the lanes.
        """
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
        return replace(derived, profile=_with_lane(derived.profile, lane))

    def _drafting(self, **settings: Any) -> Schedule:
        return Schedule(
            target_lane=self.machine.target_lane,
            draft_lane=self.machine.draft_lane,
            drafter=self.draft.shape.name,
            num_speculative_tokens=WINDOW,
            **settings,
        )


def _with_lane(profile: Profile, lane: LaneProfile) -> Profile:
    lanes = tuple(lane if one.name == lane.name else one for one in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})
