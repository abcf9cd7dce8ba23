"""Schedules for engines of tiny models, one of every kind, and the engine that they run on."""

from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec

PROMPT = [5, 17, 3, 44, 8]
NEAR_TIE = 1e-4
SPLIT = {"target_lane": "big", "draft_lane": "small"}


def speculative(num_tokens=4, **options):
    return Schedule(method="speculative", num_speculative_tokens=num_tokens, **SPLIT | options)


def mirror(num_tokens=4, **options):
    return Schedule(method="mirror", num_speculative_tokens=num_tokens, **SPLIT | options)


AUTOREGRESSIVE = Schedule(method="autoregressive", target_lane="big")
POOLED = speculative(3, draft_lane="big")
SCHEDULES = {
    "autoregressive": AUTOREGRESSIVE,
    "speculative": speculative(),
    "pooled": POOLED,
    "speculative with features": speculative(exit_features=True),
    "mirror from the exit": mirror(root_source="exit", exit_layer=2, exit_top_k=4),
    "mirror from the draft": mirror(root_source="draft", draft_top_k=3),
    "hybrid mirror": mirror(3, root_source="hybrid", exit_layer=3, exit_top_k=2, draft_top_k=2),
    "mirror with uneven roots": mirror(3, root_source="draft", roots_per_row=(4, 2, 0, 1)),
    "mirror with features": mirror(root_source="exit", exit_layer=2, exit_top_k=4, exit_features=True),
    "mirror with a window of one": mirror(1, root_source="draft", draft_top_k=2),
}
_SPECIAL = ("autoregressive", "mirror with uneven roots", "mirror with a window of one")
CHAINS = [name for name in SCHEDULES if name not in _SPECIAL]
"""One of every kind, for lanes where a text takes long."""


def on_lanes(schedule, target, draft="small"):
    """The schedule with the target, and a draft that shares its lane, on one lane and other drafts on another."""
    lanes = {"big": target, "small": draft, None: None}
    return schedule.model_copy(update={name: lanes[getattr(schedule, name)] for name in ("target_lane", "draft_lane")})


def for_folders(schedule, folders):
    """The schedule with the draft that it needs."""
    folder = folders.feature_drafter if schedule.exit_features else folders.drafter
    return schedule.model_copy(update={"drafter": str(folder)}) if schedule.draft_lane else schedule


def new_engine(folders, *, lanes=("big", "small"), dtype="float32", **options):
    specs = [LaneSpec(name=name) for name in lanes]
    fields = {"exits_folder": folders.exits, "draft_deadline_s": 60.0} | options
    return Engine(folders.target, lanes=specs, dtype=dtype, **fields)
