"""Runs and simulates given schedules, on the machine of a profile and the prompts of a record (`mirrorsd validate`).

If the profile was not calibrated for the lengths of the texts, it is extrapolated, and the result says so.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from calibrate.profiling.anchors import lanes_of
from calibrate.prompts import EncodedPrompt, Prompt
from decoding.errors import ConfigError, RecordError
from decoding.progress import ReportProgress
from decoding.record import AcceptanceRecord
from decoding.recorded.prompt_record import hash_of_ids
from decoding.schedule import Schedule
from hwprofiles.other_use import OtherUse, busy
from hwprofiles.profile import Profile, load_profile
from mirrorsd.compare.calibrated_lengths import reach_in_words, reaching, require_reach
from mirrorsd.compare.measured_answer import candidates_of, judge_runs
from mirrorsd.compare.outcome_entries import outcome_facts
from mirrorsd.compare.outcome_folder import Outcome
from mirrorsd.compare.present_pace import paces_now
from mirrorsd.compare.run_in_turn import anchors_of, run_in_turn
from mirrorsd.compare.runs import Measured
from mirrorsd.lane_choice import profile_lanes
from mirrorsd.model_pair import NO_DRAFTER, find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.simulation import as_recorded, require_same_models
from mirrorsd.text_engine import new_engine
from planner.plan import make_plan
from planner.search.space import SearchSpace
from planner.wording import counted
from runtime.backends.lane_device import Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBasis:
    """A profile and a record of the same models, from which predictions are made, and their files.

    The record has each prompt once; `num_repeats` is the number of further texts in its file.
    """

    profile: Profile = field(repr=False)
    record: AcceptanceRecord = field(repr=False)
    profile_path: Path
    record_path: Path
    num_repeats: int = 0

    @classmethod
    def load(cls, profile_path: Path, record_path: Path) -> "MeasuredBasis":
        """Read both; raise `ConfigError` if they are of different models, or cannot be compared with runs."""
        profile, record = load_profile(profile_path), AcceptanceRecord.load(record_path)
        if record.temperature or record.assumed is not None:
            what = f"texts of temperature {record.temperature:g}" if record.assumed is None else "assumed acceptance"
            raise ConfigError(
                f"{record_path}: has {what}, but runs are greedy and need a greedy record to compare with"
            )
        if any(one.prompt_hash is None for one in record.prompts):
            msg = f"{record_path}: has no hashes of its prompts, by which the prompts to run are found"
            raise ConfigError(f"{msg}; record it again (`mirrorsd record`)")
        require_same_models(profile, record, sides=(profile_path, record_path))
        distinct = record.distinct
        return cls(
            profile=profile,
            record=distinct,
            profile_path=profile_path,
            record_path=record_path,
            num_repeats=len(record.prompts) - len(distinct.prompts),
        )

    @property
    def repeats_in_words(self) -> str | None:
        """A note if the record has several texts of a prompt, which are no further evidence in greedy decoding."""
        if not self.num_repeats:
            return None
        texts = counted(self.num_repeats, "further text")
        return f"{self.record_path} has {texts} of the same prompts; each prompt was run once."


def validate(
    schedules: Mapping[Path, Schedule],
    evidence: MeasuredBasis,
    prompts: Sequence[Prompt],
    *,
    exits: str | None = None,
    run_options: Sequence[str] = (),
    progress: ReportProgress = lambda _step, _share: None,
    so_far: Callable[[Callable[[], Outcome]], None] = lambda _outcome: None,
) -> Outcome:
    """Run the schedules (by file) once on every prompt of the record, and simulate the same runs.

    `prompts` have to include the recorded ones; `run_options` name the models for the command to run next. Between two
    prompts, `so_far` gets a function that returns the outcome of those that are over. Raises `MirrorsdError` if a
    schedule does not fit, a prompt, a model or a lane is missing, or the profile cannot be extrapolated to the lengths
    of the texts (`OutOfRangeError`).
    """
    profile, record = evidence.profile, evidence.record
    sides = evidence.profile_path, evidence.record_path
    lanes = {lane for schedule in schedules.values() for lane in lanes_of(schedule)}
    checked = [require_same_models(profile, record, schedule=one, sides=sides) for one in schedules.values()]
    taken = dict.fromkeys(filter(None, checked))
    calibrated = profile
    profile, extrapolated = reaching(profile, record, [lane.name for lane in profile.lanes], sides=sides)
    require_reach(profile, record, lanes, sides=sides)
    pair = find_pair(
        record.target,
        drafter=record.drafter or NO_DRAFTER,
        exits=exits or record.exits,
        dtype=cast("Dtype", record.dtype),
        progress=progress,
    )
    named = {path: one if one.drafter else pair.with_drafter(one) for path, one in schedules.items()}
    paths, repeated = by_schedule(named)
    encoded = matching_prompts(encode(prompts, pair.target_folder), record)
    as_calibrated = candidates_of(list(paths), profile, record)
    others = OtherUse()

    def outcome(measured: Measured, paces: Mapping[str, float]) -> Outcome:
        used = others.so_far()
        plan = make_plan(SearchSpace(), as_recorded(profile, record), record)
        at_present = plan.profile.at_paces(paces)
        judged = judge_runs(candidates_of(list(paths), at_present, record), measured, at_present, plan.record)
        is_stopped = measured.num_prompts < len(encoded)
        stopped = f"Stopped early: {measured.num_prompts} of {counted(len(encoded), 'prompt')} were run."
        told = filter(None, [stopped * is_stopped, extrapolated, pair.unheeded(), evidence.repeats_in_words])
        return Outcome(
            title="mirrorsd validate",
            plan=plan,
            judged=judged,
            files={"profile": evidence.profile_path, "record": evidence.record_path},
            facts=outcome_facts(judged, plan, pair, used=used),
            dtype=pair.dtype,
            notes=(*profile.notes, *filter(None, [reach_in_words(calibrated, record, lanes)])),
            warnings=(*told, *taken, *repeated),
            warning=busy(used, is_over=True),
            run_options=tuple(run_options),
            given=paths,
            paces=paces,
        )

    with new_engine(pair, profile_lanes(profile)) as engine:
        anchors, runs_s = anchors_of(engine, profile), sum(one.prediction.decode_s for one in as_calibrated)
        progress("timing this machine's present speed", 0.0)
        paces = paces_now(engine, anchors, list(paths), profile, runs_s=runs_s)

        def going_on(measured: Measured) -> Collection[Schedule]:
            if measured.num_prompts:
                so_far(partial(outcome, measured, paces))
            return list(paths)

        measured = run_in_turn(
            engine,
            list(paths),
            encoded,
            anchors,
            cuts=[record.max_new_tokens] * len(encoded),
            going_on=going_on,
            progress=progress,
        )
    return outcome(measured, paces)


def by_schedule(schedules: Mapping[Path, Schedule]) -> tuple[dict[Schedule, Path], list[str]]:
    """Return the first file of each schedule, and a sentence for each further file with the same schedule."""
    paths: dict[Schedule, Path] = {}
    repeated = []
    for path, schedule in schedules.items():
        first = paths.setdefault(schedule, path)
        if first != path:
            repeated.append(f"{path} has the same schedule as {first}, which was run once for both.")
    return paths, repeated


def matching_prompts(prompts: Sequence[EncodedPrompt], record: AcceptanceRecord) -> tuple[EncodedPrompt, ...]:
    """Return the prompts with the same tokens as the record's, in the record's order and with its names.

    Raises `RecordError` if one is missing, has other tokens now, or was recorded without the hash of its tokens.
    """
    names, by_tokens = {one.name for one in prompts}, {hash_of_ids(one.ids): one for one in prompts}
    found = []
    for entry in record.prompts:
        one = by_tokens.get(entry.prompt_hash or "")
        if one is None:
            why = f"is not among the {len(names)} prompts given; give those that were recorded (--prompts)"
            if entry.prompt_hash is None:
                why = "has no hash of its tokens in the record, by which it is found; record it again"
            elif entry.name in names:
                why = "was recorded with other tokens: its text, the chat template or the tokenizer has changed"
            raise RecordError(f"prompt {entry.name!r} {why}")
        found.append(one._replace(name=entry.name))
    return tuple(found)
