"""Simulation and search for users: `sim` and `planner` with a check that profile and record are of the same models.

`replayed` allows the acceptance of another pair, for example of a smaller one. A search skips lanes of another back end
than the record's, because they decide near ties differently. Acceptance may also be assumed (`sim.acceptance.assumed`).
Results carry a warning in each of these cases. Nothing here loads torch.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import planner.plan
import sim.evaluator
import sim.world
from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
from decoding.recorded.prompt_record import RecordedChain, RecordedTree
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.profile import Profile
from mirrorsd.same_model import is_other_model, is_same_path
from planner.paired_ratio import Ratio, comparer
from planner.plan import Plan
from planner.search.search import SearchResult
from planner.search.space import SearchSpace, judging_part
from planner.verdict import times
from planner.wording import listing
from runtime.backends.lane_device import Device
from sim.acceptance.replay import Acceptance, record_of
from sim.prediction import Prediction

_MOST_NAMES: Final = 3


def repeating_sentence(names: Sequence[str], num_texts: int, ratio: Ratio | None = None) -> str:
    """Return a warning about answers that repeat themselves; `ratio` compares drafting with plain on all others."""
    shown = [*names[:_MOST_NAMES], *(["others"] if len(names) > _MOST_NAMES else [])]
    without = "" if ratio is None else f"; without them drafting has {times(ratio)} the speed of plain decoding"
    return f"{len(names)} of {num_texts} answers repeat themselves, which is easy to draft ({listing(shown)}){without}."


def predicted_on_repeating(plan: Plan) -> str | None:
    """Return `repeating_sentence` for a prediction; None if no answer repeats itself, or all texts are drawn."""
    judged = judging_part(plan.record)
    repeating = [prompt.name for prompt in judged.prompts if prompt.repeats_itself]
    if not repeating or plan.record.assumed is not None:
        return None
    others = tuple(prompt for prompt in judged.prompts if prompt.name not in repeating)
    plain, drafting = plan.judged.best(kind="plain"), plan.judged.best_drafting()
    ratio = None
    if others and plain is not None and drafting is not None:
        compare = comparer(plan.profile, replace(judged, prompts=others))
        ratio = compare(drafting.schedule, plain.schedule)
    return repeating_sentence(repeating, len(judged.prompts), ratio)


_FACTS: Final = ("target", "drafter", "dtype")
_BACKEND: Final = "back end"


def predict(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance,
    *,
    max_new_tokens: int | None = None,
    replayed: bool = False,
) -> Prediction:
    """Predict the times of a schedule on a machine; see `sim.evaluator.predict`.

    With `replayed`, the record may be of other models than the profile; the prediction's `source` then says so.

    Raises:
        ProfileError: the profile lacks what the schedule uses (`OutOfRangeError` beyond the measured range).
        RecordError: the record does not cover the schedule.
        ConfigError: profile and record are of different models, or the schedule does not fit them.
    """
    label = require_same_models(profile, acceptance, replayed=replayed, schedule=schedule)
    schedule = with_recorded_drafter(schedule, record_of(acceptance))
    found = sim.evaluator.predict(schedule, profile, acceptance, max_new_tokens=max_new_tokens)
    return _labelled(found, label)


def simulate(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance,
    *,
    max_new_tokens: int | None = None,
    trace: bool = True,
    replayed: bool = False,
) -> list[Trace]:
    """Simulate a schedule event by event, a trace per prompt; see `sim.world.simulate`, and `predict` for errors."""
    require_same_models(profile, acceptance, replayed=replayed, schedule=schedule)
    schedule = with_recorded_drafter(schedule, record_of(acceptance))
    return sim.world.simulate(schedule, profile, acceptance, max_new_tokens=max_new_tokens, trace=trace)


def with_recorded_drafter(schedule: Schedule, record: AcceptanceRecord) -> Schedule:
    """Return a schedule that names no head with the recorded one for its method, if there is exactly one."""
    others: Sequence[RecordedTree | RecordedChain] = (*record.trees, *record.chains)
    names = {one.drafter for one in others if one.method == schedule.method}
    if schedule.drafter is not None or len(names) != 1:
        return schedule
    return schedule.model_copy(update={"drafter": names.pop()})


def make_plan(space: SearchSpace, profile: Profile, acceptance: Acceptance, *, replayed: bool = False) -> Plan:
    """Search for the fastest schedule, and judge whether speculation pays, why, and what would change that.

    Unless `replayed`, lanes of another back end than the record's are skipped if any lane has the record's.

    Raises:
        ConfigError: profile and record are of different models, and `replayed` is false.
        PlanError: no schedule of the space can be predicted from the profile and the record.
    """
    record = record_of(acceptance)
    label = require_same_models(profile, record, replayed=replayed)
    machine = profile if replayed else as_recorded(profile, record)
    plan = planner.plan.make_plan(space, machine, record)
    skipped = None if replayed else left_out_in_words(profile, record)
    found = (label, in_words(record), skipped, predicted_on_repeating(plan))
    warnings = tuple(filter(None, found))
    verdict = replace(plan.verdict, warnings=(*plan.verdict.warnings, *warnings))
    return replace(plan, search=_ranking(plan.search, label), judged=_ranking(plan.judged, label), verdict=verdict)


def require_same_models(
    profile: Profile,
    acceptance: Acceptance,
    *,
    replayed: bool = False,
    sides: tuple[object, object] = ("the profile", "the record"),
    schedule: Schedule | None = None,
) -> str | None:
    """Check that a profile and a record are of the same models; return the warning that their results must carry.

    Target, drafter and weights have to be equal. The record's back end has to be that of at least one lane of the
    profile, or with a `schedule`, of all of its lanes; its draft model must not be another one either. The warning is
    None unless they differ and `replayed` allows it, or it is not known whether the schedule's draft model is the same.

    Raises:
        ConfigError: they differ, and `replayed` is false; the message names the two by `sides`, such as their files.
    """
    record = record_of(acceptance)
    draft = None
    if schedule is not None and schedule.traits.has_draft_model:
        recorded = record.drafter if replayed and record.assumed is None else None
        draft = _taken_draft(schedule.drafter, profile.drafter, recorded, sides[0])
    if record.assumed is not None:
        return draft
    differing = [name for name in _FACTS if not is_same_path(getattr(profile, name), getattr(record, name))]
    both = [{name: getattr(side, name) for name in differing} for side in (profile, record)]
    found = [one for one in backends_of(profile, schedule).values() if one != record.backend]
    if found and (schedule is not None or replayed or len(found) == len(profile.lanes)):
        both[0][_BACKEND], both[1][_BACKEND] = " and ".join(dict.fromkeys(found)), record.backend
    if not both[0]:
        return draft
    ours, theirs = (", ".join(f"{name} {value}" for name, value in facts.items()) for facts in both)
    if replayed:
        what = "numeric form" if {"dtype", _BACKEND}.issuperset(both[0]) else "pair"
        label = f"Acceptance is replayed from another {what}: it was recorded with {theirs}, but times are of {ours}."
        return " ".join(filter(None, (label, draft)))
    msg = (
        f"{sides[0]} was measured with {ours}, but {sides[1]} was recorded with {theirs}. Calibrate and record with "
        "the same models, weights and device; to use the acceptance of another pair all the same, give search and "
        "simulate --replayed-acceptance (in Python, replayed=True)"
    )
    raise ConfigError(msg)


def _taken_draft(named: str | None, timed: str | None, recorded: str | None, side: object) -> str | None:
    """Return a warning if a schedule's draft model (`named`) may differ from the timed one; `ConfigError` if it does.

    `recorded` is the draft model of a replayed record, None otherwise.
    """
    if not named or not timed:  # schedules and profiles without a name fit any draft model
        return None
    others = {known: is_other_model(named, known) for known in (timed, recorded) if known}
    if False in others.values():
        return None
    for known, is_other in others.items():
        if is_other is None:
            return f"The schedule's drafter {named} is assumed to be {known}: it is not known whether they differ."
    raise ConfigError(
        f"{side} was measured with drafter {timed}, but the schedule's drafter is {named}: calibrate and record with "
        "it, or use the profile that a plan for it writes (--profile-out)"
    )


def in_words(record: AcceptanceRecord) -> str | None:
    """Return the warning that results with assumed acceptance or sampled texts carry; None for recorded greedy texts.

    The time of sampling beyond a greedy decision was measured on one core of an AMD EPYC (Zen 5, AVX-512), with the
    rules `match` and `ratio` and cold caches, as after a pass; no other CPU was tried.
    """
    if record.assumed is not None:
        return f"Acceptance is assumed, not recorded: {record.assumed}. The prompts are drawn texts."
    if record.temperature:
        return (
            f"Times do not include sampling tokens at temperature {record.temperature:g}, which takes a CPU core about "
            "0.2 ms per row for a vocabulary of 49,152 tokens, and 0.4 ms for one of 151,936."
        )
    return None


def _labelled(prediction: Prediction, label: str | None) -> Prediction:
    return prediction if label is None else replace(prediction, source=f"{label} {prediction.source}")


def _ranking(found: SearchResult, label: str | None) -> SearchResult:
    if label is None:
        return found
    candidates = (replace(one, prediction=_labelled(one.prediction, label)) for one in found.candidates)
    return replace(found, candidates=tuple(candidates))


def backends_of(profile: Profile, schedule: Schedule | None = None) -> dict[str, str]:
    """Return the back end that computes on each lane of a profile, or on the lanes of a schedule."""
    used = None if schedule is None else (schedule.target_lane, schedule.draft_lane)
    return {lane.name: device_of(lane).backend for lane in profile.lanes if used is None or lane.name in used}


def device_of(lane: LaneProfile) -> Device:
    """Return the device that a lane is on; in profiles of earlier versions only the lane's name says it.

    For a layer split, which none of our back ends runs, it is the last card.
    """
    split = LayerSplit.of(lane.name)
    if split is not None:
        return Device.of_lane(split.last)
    return Device.of_lane(lane.device if ":" in lane.device else lane.name)


def left_out_in_words(profile: Profile, record: AcceptanceRecord) -> str | None:
    """Return a sentence that names the lanes that `as_recorded` skips in a search; None if it skips none."""
    kept = {lane.name for lane in as_recorded(profile, record).lanes}
    found = {lane: backend for lane, backend in backends_of(profile).items() if lane not in kept}
    if not found:
        return None
    lanes = ", ".join(f"{lane} ({backend})" for lane, backend in found.items())
    return f"The record was made with {record.backend}, so lanes of other back ends are skipped: {lanes}."


def as_recorded(profile: Profile, record: AcceptanceRecord) -> Profile:
    """Return a profile without lanes of another back end than the record's; unchanged if no lane would be left."""
    found = backends_of(profile)
    kept = {lane for lane, backend in found.items() if backend == record.backend}
    if record.assumed is not None or len(kept) in (0, len(found)):
        return profile

    def among(lanes: Collection[str]) -> bool:
        return kept.issuperset(lanes)

    return profile.model_copy(
        update={
            "lanes": tuple(lane for lane in profile.lanes if lane.name in kept),
            "links": tuple(link for link in profile.links if among(link.lanes)),
            "contention": tuple(pair for pair in profile.contention if among(pair.lanes)),
        }
    )
