"""`mirrorsd demo`: calibrates, records, searches, runs and compares on this machine, within a given time."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from calibrate.profiling.calibration import calibrate
from calibrate.profiling.unfinished import Unfinished
from calibrate.prompts import Prompt, draw_prompts
from calibrate.recording.reach import Reach
from decoding.files import locked, reserved
from decoding.methods import METHODS
from decoding.progress import ReportProgress
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, save_schedule
from hwprofiles.other_use import LESS_CERTAIN, OtherUse, busy
from hwprofiles.profile import Profile
from mirrorsd.compare.measured_answer import JudgedRuns, candidates_of, judge_runs
from mirrorsd.compare.outcome_entries import outcome_facts
from mirrorsd.compare.outcome_folder import DEMO, ROOM_BYTES, Outcome, file_name, write_outcome
from mirrorsd.compare.present_pace import paces_now
from mirrorsd.compare.run_in_turn import anchors_of, run_in_turn
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import (
    CALIBRATE,
    ENOUGH_PROMPTS,
    FAIR_PROMPTS,
    FIRST_PROMPTS,
    MORE,
    MOST_CALIBRATION_S,
    RECORD,
    REPORT,
    REPORT_S,
    RUN,
    SEARCH,
    SEARCH_S,
    SHORT_CUT,
    WANTED_PROMPTS,
    PromptCost,
    answering,
    enough_s,
    expected_runs_s,
    expected_stages,
    most_important,
    prompt_cost,
    recording_s,
    short_runs_s,
    text_length,
    what_fits,
)
from mirrorsd.demo.race import FurtherPrompts, Race
from mirrorsd.demo.stages import StageReport, Stages
from mirrorsd.lane_choice import chosen_lanes, require_drafter
from mirrorsd.measure_pair import calibration_task, contexts_of, record
from mirrorsd.model_pair import ModelPair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from planner.plan import Plan, make_plan
from planner.search.search import Candidate, pick_demo_schedules
from planner.search.space import SearchSpace
from planner.wording import counted
from runtime.engine import Engine
from runtime.models.tokenizer import Tokenizer
from runtime.wire.stops import seeing_stops, working_s

_LOADING_S: Final = 10.0
_AROUND_RUNS_S: Final = _LOADING_S + SEARCH_S + REPORT_S
"""Seconds for everything but calibrating, recording and running."""

_RECORDED_TREES: Final = ((2, 4), (3, 4))
"""(depth, top_k) of recorded trees. Deeper ones take too long to record, and pay only if a step costs little."""
_FIRST_LOOK_S: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """The settings of a demo.

    Attributes:
        prompts: the pool from which a demo draws up to `max_prompts`.
        seed: seed of that draw.
        out: folder for all results.
        time_s: time limit. Calibration gets a share of it; schedules and prompts that do not fit are left out, but at
            least one prompt is run.
        max_new_tokens: length of answers that the verdict is about; if time is short, recorded texts are shorter.
        device: device of the lanes; None for the default one.
        lanes: comma-separated names of lanes, instead of all lanes of a device; the first lane's device records.
        run_options: options of `mirrorsd run` that name the models, for the command to run next.
    """

    pair: ModelPair
    prompts: tuple[Prompt, ...]
    out: Path
    seed: int = 0
    time_s: float = 390.0
    max_prompts: int = 160
    max_new_tokens: int = 256
    max_window: int = 8
    device: str | None = None
    lanes: str | None = None
    run_options: tuple[str, ...] = ()


class Demo:
    """One demo; `busy_now` warns of other programs on the machine, and `saved` has sentences on what is on disk."""

    def __init__(
        self,
        settings: DemoSettings,
        show: Callable[[StageReport], None],
        saved: list[str] | None = None,
    ) -> None:
        """Prepare a demo; nothing is started. If it is interrupted, `saved` says what is on disk.

        Raises `ConfigError` if a lane is missing, or nothing can draft on the lanes.
        """
        self.saved: list[str] = [] if saved is None else saved
        self._settings = settings
        self._lanes = chosen_lanes(settings.device, settings.lanes, settings.pair)
        require_drafter(settings.pair, self._lanes)
        self._stages = Stages(expected_stages(settings.time_s), show, limit_s=settings.time_s, clock=working_s)
        self._others = OtherUse()
        self._prompts = draw_prompts(settings.prompts, settings.max_prompts, settings.seed)
        self._encoded = encode(self._prompts, settings.pair.target_folder)
        time.sleep(max(0.0, _FIRST_LOOK_S - self._stages.elapsed_s))
        self.busy_now = busy(self._others.so_far())
        self._notes: tuple[str, ...] = ()
        self._shortage: str | None = None
        self._paces: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Go through all stages, and return the JSON object that is written last."""
        with ExitStack() as whole:
            with new_engine(self._settings.pair, self._lanes) as engine, reserved(self._settings.out, ROOM_BYTES):
                whole.enter_context(locked(self._settings.out))
                profile = self._calibrate(engine)
                with seeing_stops():
                    accepted = self._record(profile)
                    progress = self._stages.begin(SEARCH)
                    progress("predicting every schedule", 0.0)
                    plan = make_plan(SearchSpace(), profile, accepted)
                    save_schedule(plan.recommended.schedule, self._path("best.yaml"))
                    self.saved.append(
                        f"The schedule that is recommended by prediction is in {self._path('best.yaml')}."
                    )
                    candidates = self._choose(plan)
                measured = self._run_for_real(engine, plan, candidates)
                with seeing_stops():
                    more = self._record_more(plan, candidates, measured)
            return self._report(plan, [one.schedule for one in candidates], measured, more)

    def _calibrate(self, engine: Engine) -> Profile:
        settings, progress = self._settings, self._stages.begin(CALIBRATE)
        progress("loading the models", 0.0)
        lengths = [len(prompt.ids) for prompt in self._encoded]
        contexts = contexts_of(lengths, settings.max_new_tokens)
        task = calibration_task(
            engine,
            settings.pair,
            self._lanes,
            contexts=contexts,
            max_window=settings.max_window,
            quick=True,
            time_s=expected_stages(settings.time_s)[CALIBRATE],
        )
        again = f"the same command with --seed {settings.seed}"  # other seeds draw prompts of other lengths
        unfinished = Unfinished(self._path("profile.yaml"), lambda text: progress(text, 0.0), self.saved, again)
        profile = calibrate(engine, task, progress, unfinished=unfinished).save(self._path("profile.yaml"))
        unfinished.remove()
        self._notes += profile.notes
        self.saved.append(f"The profile is in {self._path('profile.yaml')}.")
        return profile

    def _record(self, profile: Profile) -> AcceptanceRecord:
        settings, stages = self._settings, self._stages
        left_s = settings.time_s - stages.elapsed_s - _AROUND_RUNS_S
        length, cost = text_length(partial(self._cost, profile), settings.max_new_tokens, left_s)
        if length < settings.max_new_tokens:
            calibration_s = max(stages.elapsed_s, MOST_CALIBRATION_S)
            slower = 1 + profile.common_error  # the machine may be slower in the next demo
            enough = slower * enough_s(self._cost(profile, settings.max_new_tokens))
            needed_s = calibration_s + enough + _AROUND_RUNS_S
            self._shortage = (
                f"Texts were cut at {length} new tokens, not {settings.max_new_tokens}: there was no time to record "
                f"{ENOUGH_PROMPTS} prompts of that length. --minutes {ceil(needed_s / 60)} would be enough."
            )
            self._notes += (self._shortage,)
        own_s = recording_s(cost, left_s)
        count = max(1, min(len(self._prompts), FIRST_PROMPTS, int(own_s / cost.record_s)))
        # `reach` ends the recording in time; more prompts than estimated are given, since a batch ends together.
        first = self._prompts[: min(2 * count, FIRST_PROMPTS)]
        stages.expect(RECORD, _LOADING_S + count * cost.record_s)
        stages.expect(RUN, max(0.0, left_s - count * cost.record_s))
        reach = self._reach(length, stages.elapsed_s + _LOADING_S + own_s)
        return self._recorded(settings.pair, first, "record.npz", reach, stages.begin(RECORD))

    def _record_more(self, plan: Plan, candidates: Sequence[Candidate], measured: Measured) -> AcceptanceRecord | None:
        """Record further prompts with only what the drafting schedule predicted fastest needs, for all the time left.

        Return None if no schedule drafts, if the runs would tell nothing of further prompts, or without time for one.
        """
        drafting = answering(candidates)
        if drafting is None:
            left_out = plan.search.left_out
            why = f": {max(left_out, key=left_out.__getitem__)}" if left_out else ""
            self._notes += (f"Only plain decoding was run, since no drafting schedule can be predicted{why}.",)
            return None
        known, stages, further = plan.record, self._stages, self._further(plan, drafting)
        end_s = self._settings.time_s - REPORT_S
        if measured.num_prompts < FAIR_PROMPTS or not further.has_one_within(end_s - stages.elapsed_s):
            return None
        stages.expect(MORE, end_s - stages.elapsed_s)
        layers = tuple(filter(None, [drafting.schedule.exit_layer]))
        reach = replace(self._reach(known.max_new_tokens, end_s), exit_layers=layers)
        pair, others = self._settings.pair.only_for(drafting.schedule), self._prompts[len(known.prompts) :]
        return self._recorded(pair, others, "more.npz", reach, stages.begin(MORE, by_time=True))

    def _further(self, plan: Plan, drafting: Candidate | None) -> FurtherPrompts:
        names = () if drafting is None else (drafting.schedule.drafter,)
        record_s = self._cost(plan.profile, plan.record.max_new_tokens, names).record_s
        return FurtherPrompts(_LOADING_S, record_s, len(self._prompts) - len(plan.record.prompts))

    def _reach(self, max_new_tokens: int, end_s: float) -> Reach:
        return Reach(
            max_new_tokens=max_new_tokens,
            max_window=self._settings.max_window,
            trees=_RECORDED_TREES,
            enough=lambda next_s: self._stages.elapsed_s + next_s > end_s,
        )

    def _recorded(
        self, pair: ModelPair, prompts: Sequence[Prompt], name: str, reach: Reach, progress: ReportProgress
    ) -> AcceptanceRecord:
        accepted = record(
            pair,
            prompts,
            self._path(name),
            reach=reach,
            device=self._lanes[0].device.name,
            num_threads=max(lane.num_threads for lane in self._lanes),
            progress=progress,
        )
        self.saved.append(
            f"The acceptance record of {counted(len(accepted.prompts), 'prompt')} is in {self._path(name)}."
        )
        return accepted

    def _cost(self, profile: Profile, max_new_tokens: int, only: Collection[str | None] = ()) -> PromptCost:
        settings = self._settings
        heads = {name: one for name, one in settings.pair.head_methods.items() if not only or name in only}
        return prompt_cost(
            profile,
            prompt_length=fmean(len(prompt.ids) for prompt in self._encoded),
            max_new_tokens=max_new_tokens,
            max_window=settings.max_window,
            growing=[name for name, method in heads.items() if METHODS[method].has_dynamic_trees],
            num_tree_steps=sum(depth for depth, _ in _RECORDED_TREES),
        )

    def _choose(self, plan: Plan) -> list[Candidate]:
        picked, stages = pick_demo_schedules(plan.search), self._stages
        candidates = most_important(picked, plan.recommended)
        costs, num_prompts = short_runs_s(plan, candidates), min(WANTED_PROMPTS, len(plan.record.prompts))
        left_s = self._settings.time_s - stages.elapsed_s - REPORT_S
        count = what_fits(costs, left_s, num_prompts)
        runs_s = min(left_s, expected_runs_s(costs[:count]))
        stages.expect(RUN, runs_s)
        stages.expect(MORE, left_s - runs_s)
        if count < len(candidates):
            run = f"Only {count} of {len(candidates)} schedules were run"
            self._notes += (f"{run}: there was no time for all of them on {counted(num_prompts, 'prompt')}.",)
        chosen = {candidate.schedule for candidate in candidates[:count]}
        return [one for one in picked if one.schedule in chosen]

    def _run_for_real(self, engine: Engine, plan: Plan, candidates: Sequence[Candidate]) -> Measured:
        """Run all schedules on texts cut short, and then the schedules that have not lost on whole texts."""
        settings, stages, num_prompts = self._settings, self._stages, len(plan.record.prompts)
        length = plan.record.max_new_tokens
        cuts = [min(SHORT_CUT, length) if place < WANTED_PROMPTS else length for place in range(num_prompts)]
        end_s, further = settings.time_s - REPORT_S, self._further(plan, answering(candidates))
        race = Race(candidates, plan, cuts, end_s=end_s, clock=lambda: stages.elapsed_s, further=further)
        schedules, anchors = [one.schedule for one in candidates], anchors_of(engine, plan.profile)
        progress = stages.begin(RUN, by_time=True)
        progress("timing this machine's present speed", 0.0)
        self._paces = paces_now(engine, anchors, schedules, plan.profile, runs_s=end_s - stages.elapsed_s)
        prompts = self._encoded[:num_prompts]
        return run_in_turn(engine, schedules, prompts, anchors, cuts=cuts, going_on=race.going_on, progress=progress)

    def _report(
        self, plan: Plan, schedules: Sequence[Schedule], measured: Measured, more: AcceptanceRecord | None
    ) -> dict[str, Any]:
        self._stages.begin(REPORT)
        used = self._others.so_far()
        pair = self._settings.pair
        at_present = plan.profile.at_paces(self._paces)
        judged = judge_runs(candidates_of(schedules, at_present, plan.record), measured, at_present, plan.record, more)
        facts = {
            **outcome_facts(judged, plan, pair, used=used),
            "seed": self._settings.seed,
            "total_s": self._stages.elapsed_s,
            "shortage": self._shortage,
            "winner": judged.verdict.recommended,
            "predicted_winner": dict(zip(schedules, judged.names, strict=True)).get(plan.recommended.schedule),
        }
        files = {"profile": self._path("profile.yaml"), "record": self._path("record.npz")}
        outcome = Outcome(
            title="mirrorsd demo",
            plan=plan,
            judged=judged,
            files=files if more is None else files | {"more": self._path("more.npz")},
            facts=facts,
            dtype=pair.dtype,
            notes=self._notes,
            warnings=tuple(filter(None, [pair.unheeded()])),
            warning=busy(used, f"the answer is {LESS_CERTAIN}; repeat the demo when nothing else runs", is_over=True),
            sample=self._sample(judged),
            run_options=self._settings.run_options,
            paces=self._paces,
        )
        written = write_outcome(outcome, self._settings.out, DEMO)
        folder = Path(written["folder"]) / "schedules"
        for stale in folder.glob("[0-9][0-9]-*.yaml"):
            stale.unlink()
        for place, (result, name) in enumerate(zip(judged.results, judged.names, strict=True), 1):
            save_schedule(result.candidate.schedule, folder / f"{file_name(place, name)}.yaml")
        return written

    def _sample(self, judged: JudgedRuns) -> tuple[str, str]:
        """Return the first prompt and the target's answer, by a schedule that drafts chains if there is one."""
        runs = [row[0] for row in judged.measured.runs]
        chains = [run for run, one in zip(runs, judged.comparisons, strict=True) if not one.is_tree]
        tokenizer = Tokenizer.from_folder(self._settings.pair.target_folder)
        return self._prompts[0].text, tokenizer.decode((chains or runs)[0].tokens)

    def _path(self, name: str) -> Path:
        return self._settings.out / name
