"""A whole demo on a made-up machine and clock: what fits in its time, and that it keeps to it."""

import re
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import isfinite
from types import SimpleNamespace

import pytest

from calibrate.profiling.anchors import Anchors
from calibrate.prompts import EncodedPrompt, Prompt, draw_prompts
from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.schedule import load_schedule
from hwprofiles.other_use import Use
from mirrorsd.compare.numbers import run_command
from mirrorsd.demo import demo as module
from mirrorsd.demo.demo import Demo, DemoSettings
from mirrorsd.demo.demo_plan import FAIR_PROMPTS, FIRST_PROMPTS, PromptCost, expected_stages
from planner.plan import make_plan
from planner.search.space import SearchSpace
from planner.what_if import sensitivity
from runtime.lanes.sequence_lanes import NOBODY
from runtime.wire.measurement import Measurement
from runtime.wire.operations import TimedReply
from runtime.wire.stops import STOPS
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine, with_prefill

NUM_TOKENS, NUM_PROMPTS = 32, 40


PROFILE = with_prefill(machine())


RECORD = acceptance_record(num_prompts=NUM_PROMPTS, num_tokens=NUM_TOKENS)


PAIR = SimpleNamespace(
    target="t",
    target_folder=None,
    drafter=None,
    exits=None,
    dtype="float32",
    heads=(),
    head_methods={},
    only_for=lambda schedule: schedule,
    unheeded=lambda: None,
)


PROMPTS = tuple(Prompt(prompt_id=str(place), category="", turns=(f"question {place}",)) for place in range(NUM_PROMPTS))


LAID_OUT = Measurement(part="verify", rows=1)


METHODS = "autoregressive", "speculative", "mirror"


SPACE = SearchSpace(methods=METHODS, windows=(2, 4), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())


class World:
    """Its clock goes on while something is done, and nothing else takes time.

    Attributes:
        pace: of everything that is run, over what was calibrated.
        calibration_over, record_over: how much longer than they may these take.
        loading_s: of the models, before each recording.
        stopped_s: for which everything stands in the first of the texts that count.
        record_stopped_s: for which everything stands in the first recorded prompt, seen if anybody looks then.
    """

    def __init__(
        self, *, pace=1.0, calibration_over=1.0, record_over=1.0, loading_s=0.0, stopped_s=0.0, record_stopped_s=0.0
    ):
        self.now_s, self.reports, self.asked_s = 0.0, [], None
        self.pace, self.calibration_over, self.record_over = pace, calibration_over, record_over
        self.loading_s, self.stopped_s, self.record_stopped_s = loading_s, stopped_s, record_stopped_s
        self.somebody_looks = False

    def clock(self):
        return self.now_s

    def calibrate(self, _engine, task, _progress, *, unfinished):
        self.unfinished = unfinished
        self.asked_s = task.time_s
        self.now_s += task.time_s * self.calibration_over
        return SimpleNamespace(save=lambda _path: PROFILE)

    @contextmanager
    def seeing_stops(self):
        self.somebody_looks = True
        yield
        self.somebody_looks = False

    def record(self, pair, prompts, _path, *, reach, progress, device, **_):
        self.device, self.recorded_for, recorded = device, pair, []
        self.now_s += self.loading_s
        next_s = (1.0 if reach.exit_layers is not None else 3.0) * self.record_over
        for place, prompt in enumerate(prompts):
            if place and reach.enough(next_s):
                break
            progress("a prompt", place / len(prompts))
            self.now_s += next_s + self.record_stopped_s
            STOPS.total_s += self.record_stopped_s * self.somebody_looks
            self.record_stopped_s = 0.0
            recorded.append(RECORD.prompts[int(prompt.prompt_id)])
        return replace(RECORD, prompts=tuple(recorded))

    def generate(self, schedule, ids, *, max_new_tokens, listener=NOBODY):
        one = replace(RECORD, prompts=(RECORD.prompts[ids[0]],))
        (trace,) = simulate(schedule, PROFILE, one, max_new_tokens=max_new_tokens)
        self.now_s += 0.1
        if max_new_tokens > 4:
            self.now_s += self.stopped_s
            STOPS.total_s += self.stopped_s
            self.stopped_s = 0.0
        for _ in trace.rounds:
            self.now_s += self.pace * trace.decode_s / len(trace.rounds)
            if listener.at_rest is not None:
                listener.at_rest()
        tokens = tuple(one.prompts[0].text.tolist()[:max_new_tokens])
        trace = replace(trace, world="measured", decode_s=self.pace * trace.decode_s)
        return SimpleNamespace(trace=trace, tokens=tokens)

    def load_target(self, lane):
        pass

    def compile_target(self, lane, exit_layer, drafters):
        """Take no time: what is compiled was compiled for the calibration."""

    def lane(self, name):
        return SimpleNamespace(request=lambda _, *asked: self._anchor(name, *asked))

    def _anchor(self, lane, measurement=LAID_OUT):
        seconds = self.pace * pass_s(cost_of(PROFILE.lane(lane)), 30, 1, measurement.context)
        self.now_s += measurement.repeats * seconds
        answer = TimedReply([seconds] * measurement.repeats, 0.0, seconds)
        return SimpleNamespace(result=lambda _timeout_s: answer)


@pytest.fixture
def demo_in(monkeypatch, tmp_path):
    """Runs a demo of so many minutes in a world; returns its outcome."""

    def run(world, minutes, **more):
        monkeypatch.setattr(module, "require_drafter", lambda *_: None)
        monkeypatch.setattr(module, "encode", lambda prompts, _: [encoded(prompt) for prompt in prompts])
        monkeypatch.setattr(module, "new_engine", lambda *_: nullcontext(world))
        monkeypatch.setattr(module, "calibration_task", lambda *_, **settings: SimpleNamespace(**settings))
        monkeypatch.setattr(module, "SearchSpace", lambda: SPACE)
        monkeypatch.setattr(module, "record", world.record)
        monkeypatch.setattr(module, "calibrate", world.calibrate)
        monkeypatch.setattr(module, "seeing_stops", world.seeing_stops)
        monkeypatch.setattr(module, "_FIRST_LOOK_S", 0.0)
        for name, few in {"NUM_DRAWS": 2, "ACCEPTANCES": (0.3, 0.9), "DRAFT_SPEEDS": (0.5, 2.0)}.items():
            monkeypatch.setattr(sensitivity, name, few)  # what would have to change takes no time of this clock
        written = []

        def write(outcome, folder, _name):
            written.append(outcome)
            return {"folder": str(folder)}

        monkeypatch.setattr(module, "write_outcome", write)
        monkeypatch.setattr(module.Tokenizer, "from_folder", lambda _: SimpleNamespace(decode=list))
        clocked = partial(Anchors, clock=world.clock)
        monkeypatch.setattr("mirrorsd.compare.run_in_turn.Anchors", clocked)
        (tmp_path / "config.json").write_text("{}")
        pair = SimpleNamespace(**vars(PAIR) | {"target_folder": tmp_path})
        more = {"max_new_tokens": NUM_TOKENS} | more
        settings = DemoSettings(pair=pair, prompts=PROMPTS, out=tmp_path, time_s=60 * minutes, **more)
        monkeypatch.setattr("runtime.wire.stops.time", SimpleNamespace(monotonic=world.clock))
        Demo(settings, world.reports.append).run()
        return written.pop()

    return run


def encoded(prompt):
    place = int(prompt.prompt_id)
    return EncodedPrompt(RECORD.prompts[place].name, "", (place,) * RECORD.prompts[place].prompt_length)


@pytest.mark.parametrize(("minutes", "calibration_s"), [(2, 54), (6.5, 175.5), (30, 240)])
def test_the_time_of_calibration_grows_with_that_of_the_demo(minutes, calibration_s):
    assert expected_stages(60 * minutes)[module.CALIBRATE] == pytest.approx(calibration_s)


def test_the_usual_time_is_enough_for_all_schedules_on_six_prompts_and_more(demo_in, tmp_path):
    world = World()
    outcome = demo_in(world, 6.5, run_options=("--target", "t"), device="openvino:CPU")
    assert world.device == "openvino:CPU"
    assert world.asked_s == pytest.approx(175.5)
    assert load_schedule(tmp_path / "best.yaml") == outcome.plan.recommended.schedule
    assert outcome.facts["winner"] == outcome.judged.verdict.recommended
    command = run_command(tmp_path / "best.yaml", load_schedule(tmp_path / "best.yaml"), outcome.run_options)
    assert command.endswith("best.yaml --target t --prompt 'Why is the sky blue?'")
    first = draw_prompts(PROMPTS, 1, seed=0)[0]
    assert outcome.sample == (first.text, RECORD.prompts[int(first.prompt_id)].text.tolist())
    assert len(outcome.plan.record.prompts) == FIRST_PROMPTS
    fastest = min(
        (one for one in outcome.judged.results if one.candidate.schedule.draft_lane), key=lambda one: one.predicted_s
    )
    assert world.recorded_for == fastest.candidate.schedule, "of more prompts what drafts in it"
    assert outcome.facts["num_recorded_prompts"] == outcome.judged.verdict.speedup.num_pairs == NUM_PROMPTS
    assert outcome.files["more"] == tmp_path / "more.npz"
    assert outcome.judged.measured.num_prompts >= 6
    assert len(outcome.judged.results) >= 8
    assert world.now_s <= 1.2 * 390


def test_further_prompts_are_recorded_also_where_time_ran_out_among_the_first(demo_in):
    outcome = demo_in(World(record_over=3.0), 6.5)
    assert len(outcome.plan.record.prompts) < FIRST_PROMPTS
    assert outcome.facts["num_recorded_prompts"] > FIRST_PROMPTS


@pytest.mark.parametrize("pace", [4.0, 7.5])
def test_on_a_slow_machine_runs_that_an_interval_needs_come_before_further_prompts(demo_in, pace):
    """At 4.0 all run two prompts in time, at 7.5 one, and then the two of the answer."""
    world = World(pace=pace)
    outcome = demo_in(world, 6.5)
    assert outcome.judged.measured.num_prompts > FAIR_PROMPTS
    assert outcome.facts["num_recorded_prompts"] > FIRST_PROMPTS
    assert isfinite(outcome.judged.verdict.speedup.high)
    stages = list(dict.fromkeys(report.stage for report in world.reports))
    assert stages.index(module.RUN) < stages.index(module.MORE)
    assert world.now_s == pytest.approx(385, abs=5)


def test_without_time_for_a_further_prompt_models_are_not_loaded_again(demo_in):
    world = World(record_over=12.0, calibration_over=1.7, loading_s=10.0)
    outcome = demo_in(world, 2)
    assert outcome.facts["num_recorded_prompts"] == len(outcome.plan.record.prompts)
    assert world.now_s <= 1.25 * 120


@pytest.mark.parametrize(
    ("minutes", "trouble"),
    [
        (2, {"calibration_over": 1.7}),
        (10, {"calibration_over": 1.7}),
        (2, {"record_over": 3.0}),
        (10, {"pace": 1.6, "calibration_over": 1.5}),
    ],
)
def test_the_time_is_kept_within_a_fifth_whatever_takes_longer(demo_in, minutes, trouble):
    world = World(**trouble)
    outcome = demo_in(world, minutes, device="cpu")
    assert world.device == "cpu"
    assert world.now_s <= 1.2 * 60 * minutes
    assert outcome.judged.measured.num_prompts >= 1


def test_best_yaml_is_what_the_prediction_recommends_whatever_the_choosing_half_liked(demo_in, monkeypatch, tmp_path):
    def planned(*given):
        plan = make_plan(*given)
        drafting = [one.schedule for one in plan.search.candidates if one.schedule.draft_lane]
        return replace(plan, verdict=replace(plan.verdict, schedule=drafting[-1]))

    monkeypatch.setattr(module, "make_plan", planned)
    outcome = demo_in(World(), 2)
    best = outcome.plan.recommended.schedule
    assert load_schedule(tmp_path / "best.yaml") == best != outcome.plan.search.winner.schedule
    ran = dict(zip(outcome.judged.names, outcome.judged.results, strict=True))
    assert ran[outcome.facts["predicted_winner"]].candidate.schedule == best


@pytest.mark.parametrize("during", ["stopped_s", "record_stopped_s"])
def test_time_in_which_it_is_stopped_is_none_of_the_time_of_a_demo(demo_in, monkeypatch, during):
    monkeypatch.setattr(STOPS, "total_s", 0.0)
    whole, stopped = demo_in(World(), 2), demo_in(World(**{during: 600.0}), 2)
    assert len(stopped.plan.record.prompts) == len(whole.plan.record.prompts) > 1
    assert stopped.judged.measured.num_prompts == whole.judged.measured.num_prompts > 1
    assert stopped.facts["total_s"] == pytest.approx(whole.facts["total_s"], rel=0.1)


def test_rather_fewer_schedules_than_few_prompts_and_it_is_said(demo_in):
    short, long = demo_in(World(), 2), demo_in(World(), 12)
    assert len(short.judged.results) < len(long.judged.results)
    (note,) = short.notes
    found = re.match(r"Only (\d+) of (\d+) schedules were run", note)
    assert int(found[1]) == len(short.judged.results) < int(found[2])
    assert long.notes == ()


def test_where_texts_are_cut_the_minutes_are_told_in_which_they_are_not(demo_in, monkeypatch):
    """Even on a machine that has become slower, as far as its profile says that it may."""
    pace = 1.0
    monkeypatch.setattr(sys.modules[__name__], "PROFILE", PROFILE.model_copy(update={"pace_error": 0.2}))

    def slow(_profile, *, max_new_tokens, **_):
        return PromptCost(record_s=pace * max_new_tokens / 4, short_run_s=0.5, run_s=0.5, num_schedules=8)

    monkeypatch.setattr(module, "prompt_cost", slow)
    shortage = demo_in(World(), 2, max_new_tokens=128).facts["shortage"]
    found = re.match(r"Texts were cut at (\d+) new tokens, not 128: .* --minutes (\d+) would be enough\.", shortage)
    assert int(found[1]) < 128
    pace = 1.2
    assert demo_in(World(), int(found[2]), max_new_tokens=128).facts["shortage"] is None


def test_what_is_left_never_exceeds_what_was_given_and_progress_never_runs_backwards(demo_in):
    world = World(pace=1.6, record_over=2.0)
    demo_in(world, 4)
    assert world.reports[0].left_s == pytest.approx(240)
    shares = [report.share for report in world.reports]
    assert shares == sorted(shares)
    assert all(report.left_s <= 240 for report in world.reports)
    assert set(expected_stages(240)) - {report.stage for report in world.reports} <= {module.MORE}


def test_who_goes_on_after_an_interrupted_calibration_is_told_the_seed_of_its_prompts(demo_in, monkeypatch):
    monkeypatch.setattr("calibrate.profiling.unfinished.save_samples", lambda *_: None)
    world = World()
    demo_in(world, 2)
    world.unfinished.save(SimpleNamespace(visits=["one"]))
    assert world.unfinished.saved[-1].endswith("; the same command with --seed 0 goes on from there.")


def test_a_slower_machine_is_no_error_of_the_prediction(demo_in):
    outcome = demo_in(World(pace=1.6), 6.5)
    assert list(outcome.paces.values()) == pytest.approx([1.6] * len(outcome.paces), rel=0.01)
    for one in outcome.judged.results:
        assert one.error == pytest.approx(0.0, abs=0.01)
        assert one.error_at_anchor == pytest.approx(0.0, abs=0.05)


def test_where_nothing_that_drafts_can_be_predicted_plain_decoding_is_run_and_it_says_why(demo_in, monkeypatch):
    space = SPACE.model_copy(update={"methods": ("autoregressive", "speculative"), "windows": (16,)})
    monkeypatch.setattr(sys.modules[__name__], "SPACE", space)
    outcome = demo_in(World(), 6.5)
    assert {one.candidate.schedule.method for one in outcome.judged.results} == {"autoregressive"}
    assert "no drafting schedule finished the runs" in outcome.judged.verdict.headline
    (note,) = outcome.notes
    assert note.endswith("no drafting schedule can be predicted: windows of more than 8 tokens were not recorded.")


@pytest.mark.parametrize("use", [None, Use(0.0, 0.0, 2), Use(programs=0.9, host=0.0, num_cores=2)])
def test_a_busy_machine_is_told_before_the_answer(demo_in, monkeypatch, use):
    monkeypatch.setattr(module, "OtherUse", lambda: SimpleNamespace(so_far=lambda: use))
    outcome = demo_in(World(), 2)
    is_busy = use is not None and use.programs > 0
    assert (outcome.warning is not None) == is_busy
    assert outcome.facts["busy"] == (None if use is None else pytest.approx(use.programs / 2))
