"""Whether a draft's streams pay by prediction: on this machine's committed profile, and on platforms by data sheet."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from _common import RESULTS

from costs.cost_model import Part
from decoding.record import AcceptanceRecord
from decoding.yaml_file import save_yaml
from hwprofiles.latency_table import LatencyTable
from hwprofiles.model_shape import ModelShape, model_shape
from hwprofiles.platform import Platform, load_platform
from hwprofiles.profile import LaneProfile, Profile, load_profile
from hwprofiles.sheets import shipped_names
from mirrorsd.pair_on_platform import plan_pair
from planner.search.search import SearchResult, search
from planner.search.space import SearchSpace
from sim.derived.derived_profile import Demand, lane_cost
from sim.derived.roofline import TYPICAL_CONTEXT, StoredModel

MACHINE = RESULTS / "demos-torch" / "1" / "profile.yaml"
METHODS = ("speculative", "mirror")
"""That draft with a draft model."""
_TARGET = "smollm2-135m"
_EVERY = 4
"""Of the record's prompts, those that platforms are planned with."""


def on_this_machine(record: AcceptanceRecord, step_cost: float) -> dict[str, Any]:
    """The fastest of each method without streams and with them, by the committed profile.

    Nobody calibrated streams: they are taken to cost what makes a step as dear as `step_cost` says. Prompts are those
    whose texts lie within the contexts that were measured.
    """
    profile = with_streams(load_profile(MACHINE), step_cost, record.num_streams)
    texts = within(record, profile)
    found = search(SearchSpace(methods=("autoregressive", *METHODS)), profile, texts)
    best = {method: _both(found, method) for method in METHODS}
    return {"profile": "/".join(MACHINE.parts[-3:]), "num_prompts": len(texts.prompts), "tpot_s": best}


def with_streams(profile: Profile, step_cost: float, num_streams: int) -> Profile:
    """The profile with times for streams on every lane that has steps of the draft."""

    def added(lane: LaneProfile) -> LaneProfile:
        step = lane.draft_step
        return (
            lane
            if step is None
            else lane.model_copy(update={"draft_streams": streams_of(step, step_cost, num_streams)})
        )

    return profile.model_copy(update={"lanes": tuple(map(added, profile.lanes))})


def streams_of(step: LatencyTable, step_cost: float, num_streams: int) -> LatencyTable:
    """What streams cost if a step that verifies all guesses and makes new ones costs `step_cost` steps of one row.

    They are the same share of a step of as many rows, however many those are.
    """
    shares = [
        (step_cost * step.at(1, context) - step.at(1 + num_streams, context)) / step.at(num_streams, context)
        for context in step.contexts
    ]
    seconds = tuple(tuple(fmean(shares) * one for one in row) for row in step.seconds)
    return step.model_copy(update={"seconds": seconds, "source": f"{step_cost:g} steps of one row"})


def within(record: AcceptanceRecord, profile: Profile) -> AcceptanceRecord:
    """The prompts whose texts lie within the contexts of all the profile's tables of the draft's steps."""
    tables = [lane.draft_step for lane in profile.lanes if lane.draft_step is not None]
    first, last = max(min(one.contexts) for one in tables), min(max(one.contexts) for one in tables)
    prompts = tuple(
        one for one in record.prompts if first < one.prompt_length and one.prompt_length + len(one.text) <= last
    )
    return replace(record, prompts=prompts)


def _both(found: SearchResult, method: str) -> dict[str, float]:
    of_method = [one for one in found.candidates if one.schedule.method == method]
    return {
        name: min(one.tpot_s for one in of_method if bool(one.schedule.draft_streams) == streams)
        for name, streams in (("without", False), ("with", True))
    }


def on_platforms(record: AcceptanceRecord, draft: Mapping[str, Any]) -> dict[str, Any]:
    """For every shipped platform: the fastest speculation without streams and with them, and what a step costs.

    `draft` is the `config.json` of a draft's folder. Plans price streams as one more pass through all layers of so
    shallow a draft. `step_cost` is of the lane where it is least, with the layers that streams really run through; a
    step has to bring more tokens than that, or streams are slower wherever drafting is waited for.
    """
    texts = replace(record, prompts=record.prompts[::_EVERY])
    shape, streams = _draft_shapes(draft)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.yaml"
        save_yaml(shape.model_dump(), path)
        for name in shipped_names("platform"):
            platform = load_platform(name)
            plan = plan_pair(_TARGET, path, platform, acceptance=texts, weights=("bf16", "bf16"))
            lanes = [lane.name for lane in plan.profile.lanes]
            drafting = [one for one in plan.ranking if one.schedule.num_speculative_tokens]
            found[name] = {
                "plain_s": plan.plain.tpot_s,
                "without_s": min(one.tpot_s for one in drafting if not one.schedule.draft_streams),
                "with_s": min(one.tpot_s for one in drafting if one.schedule.draft_streams),
                "step_cost": least_step_cost(platform, lanes, (shape, streams), record.num_streams),
            }
    return found


def least_step_cost(
    platform: Platform, lanes: Sequence[str], draft: tuple[ModelShape, ModelShape], num_streams: int
) -> float:
    """A step that verifies guesses and makes new ones over one of a single row, by roofline, where it is least.

    `draft` is its own shape, and that of what streams run through.
    """
    whole, upper = draft
    return min(
        (_step_s(platform, lane, whole, 1 + num_streams) + _step_s(platform, lane, upper, num_streams))
        / _step_s(platform, lane, whole, 1)
        for lane in lanes
    )


def _step_s(platform: Platform, lane: str, draft: ModelShape, rows: int) -> float:
    stored = StoredModel(shape=draft, weights="bf16")
    demand = Demand(target=stored, draft=stored, lanes=(lane,), exits=(), max_context=TYPICAL_CONTEXT)
    return lane_cost(platform, demand, lane).one(Part("draft_step"), rows, TYPICAL_CONTEXT)


def _draft_shapes(draft: Mapping[str, Any]) -> tuple[ModelShape, ModelShape]:
    """The draft's own, and that of the layers and the head that its streams run through."""
    depth = len(draft["source_layers"])
    own = {"name": "draft", "source": "config.json of the draft", "vocab_size": draft["draft_vocab_size"]}
    shape = model_shape(_TARGET).model_copy(update=own | {"num_layers": depth, "tie_embeddings": False})
    return shape, shape.model_copy(update={"num_layers": depth - draft["streams"]["start_layer"]})
