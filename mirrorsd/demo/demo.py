"""The whole product on this machine: calibrate, record, search, run for real, and compare, within a given time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from calibrate.profiling.drift import DriftWatch, drift_in_words
from calibrate.prompts import Prompt
from decoding.methods import METHODS
from decoding.record import AcceptanceRecord
from decoding.schedule import save_schedule
from hwprofiles.profile import Profile, save_profile
from mirrorsd.calibrate_pair import calibration_task, contexts_of
from mirrorsd.compare.both_worlds import Measured, compare_all, put_together, run_in_turn
from mirrorsd.compare.outcome import measured_in_words, platform_entry
from mirrorsd.compare.outcome_folder import Outcome, file_name, unique_names, write_outcome
from mirrorsd.demo.busy import busy_note
from mirrorsd.demo.demo_plan import num_prompts_that_fit, prompt_cost, take_turns
from mirrorsd.demo.stages import StageReport, Stages
from mirrorsd.model_pair import ModelPair
from mirrorsd.prompt_tokens import encode
from mirrorsd.record_pair import Reach, record
from mirrorsd.text_engine import lane_specs, new_engine
from planner.plan import Plan, make_plan
from planner.search.search import Candidate, pick_demo_schedules
from planner.search.space import SearchSpace
from runtime.engine import Engine

CALIBRATE: Final = "Calibrating this machine"
RECORD: Final = "Recording what would be accepted"
SEARCH: Final = "Searching in simulation"
RUN: Final = "Running schedules for real"
REPORT: Final = "Writing the report"
_CALIBRATION_S: Final = 100.0
EXPECTED_S: Final = {CALIBRATE: _CALIBRATION_S, RECORD: 60.0, SEARCH: 10.0, RUN: 180.0, REPORT: 5.0}
"""What stages take on two cores of a laptop or a small server; replaced by better estimates on the way."""
_LOADING_S: Final = 10.0

RESULT: Final = "demo.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """What a demo is given.

    Attributes:
        pair: the models.
        prompts: to choose from; kinds of task take turns.
        out: folder for everything.
        time_s: in which to be done. Prompts that do not fit are left out; one is run in any case.
        max_prompts: most prompts to record and run.
        max_new_tokens: cut of every text.
        max_window: most drafted tokens per round.
    """

    pair: ModelPair
    prompts: tuple[Prompt, ...]
    out: Path
    time_s: float = 330.0
    max_prompts: int = 12
    max_new_tokens: int = 48
    max_window: int = 8


class Demo:
    """One demo.

    Attributes:
        notes: remarks on the circumstances, for people.
        saved: one sentence per thing that is on disk already.
    """

    def __init__(self, settings: DemoSettings, show: Callable[[StageReport], None]) -> None:
        """Prepare; nothing is started.

        Raises:
            ModelFormatError: the target's tokenizer is damaged.
        """
        self.saved: list[str] = []
        self._settings = settings
        self._lanes = lane_specs()
        busy = busy_note(max(lane.num_threads for lane in self._lanes))
        self.notes: tuple[str, ...] = () if busy is None else (busy,)
        self._prompts = take_turns(settings.prompts)[: settings.max_prompts]
        self._encoded = encode(self._prompts, settings.pair.target_folder)
        self._stages = Stages(EXPECTED_S, show)

    def run(self) -> dict[str, Any]:
        """Go through all stages; returns the JSON object that is written last.

        Raises:
            MirrorsdError: a model, a lane or a file is not to be had.
        """
        with new_engine(self._settings.pair, self._lanes) as engine:
            profile = self._calibrate(engine)
            accepted = self._record(profile)
            plan = self._search(profile, accepted)
            candidates = pick_demo_schedules(plan.search)
            measured = self._run_for_real(engine, candidates, len(accepted.prompts))
        return self._report(plan, candidates, measured)

    def _calibrate(self, engine: Engine) -> Profile:
        from calibrate.profiling.calibration import calibrate

        settings, progress = self._settings, self._stages.begin(CALIBRATE)
        progress("loading the models", 0.0)
        lanes = {lane.name: engine.load_target(lane.name) for lane in self._lanes}
        contexts = contexts_of(self._encoded, settings.max_new_tokens)
        self._watch = DriftWatch(lanes, context=sum(contexts) // 2)
        self._watch.look("calibration")
        task = calibration_task(
            engine,
            settings.pair,
            self._lanes,
            contexts=contexts,
            max_window=settings.max_window,
            quick=True,
            time_s=_CALIBRATION_S,
        )
        profile = calibrate(engine, task, progress)
        self._watch.look("calibration")
        self.notes += profile.notes
        save_profile(profile, self._path("profile.yaml"))
        self.saved.append(f"The profile is in {self._path('profile.yaml')}.")
        return profile

    def _record(self, profile: Profile) -> AcceptanceRecord:
        settings = self._settings
        accepted = record(
            settings.pair,
            self._prompts[: self._num_prompts(profile)],
            self._path("record.npz"),
            reach=Reach(max_new_tokens=settings.max_new_tokens, max_window=settings.max_window),
            num_threads=max(lane.num_threads for lane in self._lanes),
            progress=self._stages.begin(RECORD),
        )
        self.saved.append(f"The acceptance record is in {self._path('record.npz')}.")
        return accepted

    def _num_prompts(self, profile: Profile) -> int:
        """As many as fit in the time that is left; the stages' estimates follow from it."""
        from calibrate.recording.recorder import USUAL_TREES

        settings, stages = self._settings, self._stages
        cost = prompt_cost(
            profile,
            prompt_length=fmean(len(prompt.ids) for prompt in self._encoded),
            max_new_tokens=settings.max_new_tokens,
            max_window=settings.max_window,
            growing=[name for name, method in settings.pair.head_methods.items() if METHODS[method].has_dynamic_trees],
            num_tree_steps=sum(depth for depth, _ in USUAL_TREES),
        )
        fixed_s = _LOADING_S + EXPECTED_S[SEARCH] + EXPECTED_S[REPORT]
        count = num_prompts_that_fit(cost, settings.time_s - stages.elapsed_s - fixed_s, len(self._prompts))
        stages.expect(RECORD, _LOADING_S + count * cost.record_s)
        stages.expect(RUN, count * cost.run_s)
        return count

    def _search(self, profile: Profile, accepted: AcceptanceRecord) -> Plan:
        self._stages.begin(SEARCH)("playing every schedule", 0.0)
        plan = make_plan(SearchSpace(), profile, accepted)
        save_schedule(plan.search.winner.schedule, self._path("best.yaml"))
        self.saved.append(f"The schedule predicted fastest is in {self._path('best.yaml')}.")
        return plan

    def _run_for_real(self, engine: Engine, candidates: Sequence[Candidate], num_prompts: int) -> Measured:
        settings, stages = self._settings, self._stages
        start_s = stages.elapsed_s

        def enough(num_done: int) -> bool:
            """Whether one more prompt, as long as those so far, would take too much time."""
            another_s = (stages.elapsed_s - start_s) / num_done
            return stages.elapsed_s + another_s + EXPECTED_S[REPORT] > settings.time_s

        return run_in_turn(
            engine,
            [candidate.schedule for candidate in candidates],
            self._encoded[:num_prompts],
            max_new_tokens=settings.max_new_tokens,
            enough=enough,
            between=lambda: self._watch.look("runs"),
            progress=stages.begin(RUN),
        )

    def _report(self, plan: Plan, candidates: Sequence[Candidate], measured: Measured) -> dict[str, Any]:
        self._stages.begin(REPORT)
        drift = self._watch.drift()
        self.notes += (drift_in_words(drift),)
        pair, profile, accepted = self._settings.pair, plan.profile, plan.record
        results = put_together(candidates, measured, profile, accepted)
        names = unique_names(results, plan)
        for stale in self._path("schedules").glob("[0-9][0-9]-*.yaml"):
            stale.unlink()
        for place, (result, name) in enumerate(zip(results, names, strict=True), 1):
            save_schedule(result.candidate.schedule, self._path(f"schedules/{file_name(place, name)}.yaml"))
        winner = names[[one.schedule for one in candidates].index(plan.search.winner.schedule)]
        facts = {
            "platform": platform_entry(profile.host, pair),
            "calibration_s": profile.calibration_s,
            "num_prompts": measured.num_prompts,
            "max_new_tokens": self._settings.max_new_tokens,
            "total_s": self._stages.elapsed_s,
            "drift": drift,
            "winner": winner,
            "verdict": f"{plan.verdict.text}\n\n{measured_in_words(results, names, winner)}",
        }
        outcome = Outcome(
            title="mirrorsd demo",
            plan=plan,
            results=results,
            comparisons=tuple(compare_all(results, names, accepted)),
            files={"profile": self._path("profile.yaml"), "record": self._path("record.npz")},
            facts=facts,
            dtype=pair.dtype,
            notes=self.notes,
        )
        return write_outcome(outcome, self._settings.out, RESULT)

    def _path(self, name: str) -> Path:
        return self._settings.out / name
