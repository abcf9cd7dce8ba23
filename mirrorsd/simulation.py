"""Simulates and searches for users: `sim` and `planner`, with a check that profile and record are of the same models.

With `replayed` the acceptance of another pair is replayed on purpose, such as that of a smaller one.
Lanes of another back end than the record's are not searched, because they decide near ties differently. Acceptance may
also be assumed (`sim.acceptance.assumed`). Results say either in words. Nothing here loads torch.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import planner.plan
import sim.evaluator
import sim.world
from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
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
    """Return a warning about sequences that repeat themselves; `ratio` is drafting over plain on the others."""
    shown = [*names[:_MOST_NAMES], *(["others"] if len(names) > _MOST_NAMES else [])]
    without = "" if ratio is None else f"; without them drafting has {times(ratio)} the speed of plain decoding"
    return f"{len(names)} of {num_texts} answers repeat themselves, which is easy to draft ({listing(shown)}){without}."


def predicted_on_repeating(plan: Plan) -> str | None:
    """Return that warning for a prediction; None where nothing repeats itself, or all sequences are drawn."""
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
    """Predict what a schedule does on a machine; see `sim.evaluator.predict`.

    `replayed` is whether the record may be of other models than the profile; `source` says so then.

    Raises:
        ProfileError: the profile lacks what the schedule uses (`OutOfRangeError` where it was not measured so far).
        RecordError: the record does not cover the schedule.
        ConfigError: profile and record are of different models, or the schedule does not fit them.
    """
    label = require_same_models(profile, acceptance, replayed=replayed, schedule=schedule)
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
    """Play a schedule event by event, one trace per prompt; see `sim.world.simulate`, and `predict` for errors."""
    require_same_models(profile, acceptance, replayed=replayed, schedule=schedule)
    return sim.world.simulate(schedule, profile, acceptance, max_new_tokens=max_new_tokens, trace=trace)


def make_plan(space: SearchSpace, profile: Profile, acceptance: Acceptance, *, replayed: bool = False) -> Plan:
    """Search, and judge what comes out: whether speculation pays, why, and what would change that.

    Lanes that compute otherwise than what was recorded are left out where others do not, unless `replayed`.

    Raises:
        ConfigError: profile and record are of different models, and `replayed` is false.
        PlanError: nothing in the space can be priced by the profile and the record.
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
    """Return the warning that results of a profile and a record have to carry; refuse those that do not fit.

    Both have to be of the same target, drafters, weights and back ends; of the profile's lanes one at least has to
    compute as was recorded, and all of those of a `schedule`, which must not be of another draft model. There is a
    warning only where they differ and that is `replayed` on purpose, or where nothing tells whether a schedule's draft
    model is theirs; else None.

    Raises:
        ConfigError: they differ, and `replayed` is false; the message calls the two by `sides`, such as their files.
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
        label = f"Acceptance is replayed from another {what}: recorded with {theirs}, while times are of {ours}."
        return " ".join(filter(None, (label, draft)))
    msg = (
        f"{sides[0]} was measured with {ours}, {sides[1]} recorded with {theirs}. Calibrate and record with the same "
        "models, weights and device; search and simulate replay the acceptance of another pair with "
        "--replayed-acceptance (replayed=True)"
    )
    raise ConfigError(msg)


def _taken_draft(named: str | None, timed: str | None, recorded: str | None, side: object) -> str | None:
    """Return the warning where nothing tells whether a schedule's draft model is the timed one; refuse another."""
    if not named or not timed:  # which is of any
        return None
    others = {known: is_other_model(named, known) for known in (timed, recorded) if known}
    if False in others.values():
        return None
    for known, is_other in others.items():
        if is_other is None:
            return f"The schedule's drafter {named} is taken for {known}: nothing here tells them apart."
    raise ConfigError(
        f"{side} was measured with drafter {timed}, the schedule is of another, {named}: calibrate and record with it, "
        "or take the profile that a plan for it writes (--profile-out)"
    )


def in_words(record: AcceptanceRecord) -> str | None:
    """Return the sentence that results of assumed acceptance carry, and those of sampled texts; None of greedy ones.

    What drawing takes beyond a greedy decision was measured on a core of one AMD EPYC (Zen 5, AVX-512), by the rules
    `match` and `ratio` with the caches full of other things, as after a pass; no other CPU was tried.
    """
    if record.assumed is not None:
        return f"Acceptance is assumed and not recorded: {record.assumed}. These prompts are drawn texts."
    if record.temperature:
        return (
            f"Times leave out what drawing tokens at temperature {record.temperature:g} takes: on a CPU core about "
            "0.2 ms for each row that is decided of a vocabulary of 49,152 tokens, and 0.4 ms of 151,936."
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
    """Return the device that a lane is on; profiles of before it was written down say it by the lane's name.

    Of a split, which none of our back ends runs, it is the last card.
    """
    if (split := LayerSplit.of(lane.name)) is not None:
        return Device.of_lane(split.last)
    return Device.of_lane(lane.device if ":" in lane.device else lane.name)


def left_out_in_words(profile: Profile, record: AcceptanceRecord) -> str | None:
    """Return a sentence that names the lanes that `as_recorded` leaves out of a search; None if it leaves none out."""
    kept = {lane.name for lane in as_recorded(profile, record).lanes}
    found = {lane: backend for lane, backend in backends_of(profile).items() if lane not in kept}
    if not found:
        return None
    lanes = ", ".join(f"{lane} ({backend})" for lane, backend in found.items())
    return f"The record was made by {record.backend}, so lanes that compute otherwise are skipped: {lanes}."


def as_recorded(profile: Profile, record: AcceptanceRecord) -> Profile:
    """Return a profile without lanes of another back end than the record's; unchanged where none or all would stay."""
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
