"""The passes of a calibration on a machine made of laws: what is timed when, and progress."""

from collections import Counter
from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.profiling.anchors import Anchors
from calibrate.profiling.calibration import calibrate
from calibrate.profiling.fitted_profile import fitted_profile
from calibrate.profiling.lane_parts import OF_THE_TARGET
from calibrate.profiling.passes import Measuring, decode, passes_until
from calibrate.profiling.samples import Cell, Samples
from calibrate.profiling.task import CalibrationTask
from calibrate.profiling.unfinished import Unfinished
from decoding.errors import ModelError, ProfileError
from decoding.schedule import Schedule
from decoding.trace import LaneEvent
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.asked import HEADS, SPEEDS, machine, task
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.weather import Weather


def measured(engine: FakeEngine, asked: CalibrationTask) -> Samples:
    return calibrate(engine, asked, clock=engine.clock).samples


@cache
def unhurried() -> Samples:
    """Of all passes that a calibration makes where there is time."""
    return measured(machine(), task(time_s=1000.0))


def visits_by_cell(samples: Samples) -> Counter:
    """How often every cell was timed, apart from the shortest pass of the target after every decoded text."""
    visits = Counter(visit.cell for visit in samples.visits)
    visits.subtract(shortest_pass(run.schedule.target_lane) for run in samples.runs)
    return visits


def shortest_pass(lane: str) -> Cell:
    return Cell(lane, Measurement(part="verify", rows=1, context=0, repeats=2, warm_up=1))


# What a pass is


def test_every_visit_and_every_run_has_anchors_of_its_own_lane_from_right_before_to_right_after():
    engine = machine(weather=Weather(slow=1.4, fast_s=0.5, slow_s=0.5))
    samples = measured(engine, task(heads=HEADS, time_s=60.0))
    anchors = {name: [one for one in samples.anchors if one.lane == name] for name in SPEEDS}
    stands = [(visit.cell.lane, visit.at_s, (visit.before_s, visit.after_s)) for visit in samples.visits]
    for lane, at_s, around in stands:
        before = [one.seconds for one in anchors[lane] if one.at_s < at_s]
        after = [one.seconds for one in anchors[lane] if one.at_s >= at_s]
        assert around == (before[-1], after[0])
    for run in samples.runs:
        assert run.anchors.alone.keys() == set(filter(None, (run.schedule.target_lane, run.schedule.draft_lane)))
        for lane, own in run.anchors.alone.items():
            # an anchor that ended what was before may begin the run, if the lane has done nothing since
            taken = [one.seconds for one in anchors[lane]]
            first = next(place for place, one in enumerate(anchors[lane]) if one.at_s >= run.at_s)
            assert list(own) in (taken[first : first + len(own)], taken[first - 1 : first - 1 + len(own)])


@pytest.mark.parametrize(
    ("exit_features", "readers"), [((), ["eagle"]), ((4,), [None, "eagle"])], ids=["plain draft", "draft with features"]
)
def test_targets_are_compiled_for_an_exit_and_all_features_before_anything_is_timed(exit_features, readers):
    engine = machine()
    heads = {"eagle": "eagle2", "streams": "speculative_streaming"}
    measured(engine, task(heads=heads, exit_features=exit_features))
    assert engine.compiled == {lane: (None if lane == "cpu0+1" else 6, readers, 0.0) for lane in SPEEDS}


@pytest.mark.parametrize("foreign", ["draft", *HEADS])
def test_a_drafter_of_another_target_is_refused_before_anything_is_timed(foreign, monkeypatch):
    engine = machine()

    def load(_lane, drafter="draft"):
        if drafter == foreign:
            raise ModelError("of another target")

    monkeypatch.setattr(engine, "load_draft", load)
    monkeypatch.setattr(engine, "load_streams", load)
    with pytest.raises(ModelError, match="another target"):
        measured(engine, task(heads=HEADS))
    assert engine.now_s == 0


def test_every_pass_times_and_decodes_everything_once():
    samples = unhurried()
    passes = samples.num_passes
    assert passes > 3
    assert set(visits_by_cell(samples).values()) == {passes}
    assert set(Counter(run.schedule for run in samples.runs).values()) == {passes}
    assert set(Counter((one.pair, one.role) for one in samples.together).values()) == {passes}
    first = samples.runs[: len(samples.runs) // passes]
    assert {run.is_check for run in first} == {False, True}


def test_the_shortest_pass_is_timed_after_every_text_on_the_lane_of_its_target():
    """Tables grow from it, and in a few minutes of long contexts it would be timed three times only."""
    samples = measured(machine(), task(heads=HEADS, time_s=200.0))
    assert samples.num_passes > 1, "no text is decoded again in the time that is left"
    starts = [*(run.at_s for run in samples.runs), inf]
    for run, next_s in zip(samples.runs, starts[1:], strict=True):
        first = min((one for one in samples.visits if one.at_s > run.at_s), key=lambda one: one.at_s)
        assert first.cell == shortest_pass(run.schedule.target_lane)
        assert first.at_s < next_s


def test_schedules_of_heads_take_turns_a_third_of_them_in_every_pass():
    samples = measured(machine(), task(heads=HEADS, time_s=200.0))
    passes = samples.num_passes
    assert passes > 2
    counts = Counter(run.schedule for run in samples.runs if run.schedule.drafter is not None)
    assert set(counts.values()) <= {passes // 3, passes // 3 + 1}


def test_every_second_pass_runs_backwards():
    samples = unhurried()
    visited = [one.cell for one in samples.visits if one.cell.lane == "cpu0" and one.cell != shortest_pass("cpu0")]
    size = len(visited) // samples.num_passes
    first, second = visited[:size], visited[size : 2 * size]
    assert first == second[::-1]


def test_time_that_is_too_short_for_a_pass_goes_to_whole_passes_of_the_target():
    """They are most of every round, and what is predicted of all schedules rests on them."""
    engine = machine()
    samples = measured(engine, task(heads=HEADS, time_s=108.0))
    cells = {False: set(), True: set()}
    for cell in samples.ratios():
        cells[cell.measurement.part in OF_THE_TARGET].add(cell)
    counts = visits_by_cell(samples)
    assert min(counts[cell] for cell in cells[True]) > 2 * samples.num_passes
    assert min(counts[cell] for cell in cells[False]) == samples.num_passes
    assert engine.clock() <= 108.0


def test_runs_of_the_draft_model_that_were_made_once_are_made_again_in_the_time_that_is_left():
    """What disturbs a run for a second, its anchors may miss: an only one gave its lane a wrong level of passes."""
    samples = measured(machine(), task(heads=HEADS, time_s=50.0))
    assert samples.num_passes == 1
    times = Counter((run.schedule.drafter, run.is_check, run.schedule) for run in samples.runs)
    assert {num for (drafter, is_check, _), num in times.items() if drafter is None and not is_check} == {2}
    assert {num for (drafter, is_check, _), num in times.items() if drafter is not None or is_check} == {1}


def test_drafters_take_turns_within_every_pass():
    engine = machine()
    measured(engine, task(heads=HEADS, time_s=80.0))
    loads = engine.loads[1 + len(HEADS) :]  # the first ones are to see whether they fit
    loaded = list(dict.fromkeys(loads))
    assert loaded == [(lane, name) for name in ("draft", *HEADS) for lane in SPEEDS]
    passes = len([one for one in loads if one == ("cpu0", "medusa")])
    assert passes > 1
    stages = [name for lane, name in loads if lane == "cpu0"]
    # the draft is loaded once more for what messages cost, after the first pass, and where only the target is timed
    assert stages == [*("draft", *HEADS), "draft", *("draft", *HEADS) * (passes - 1), "draft"]


def test_messages_are_timed_for_every_lane_that_may_draft_next_to_another():
    assert measured(machine(), task()).messages_s.keys() == {"cpu0", "cpu1"}


@pytest.mark.parametrize(
    ("end_s", "durations_s", "num_done"),
    [
        (inf, [10.0, 10.0, 10.0, 10.0], 4),
        (30.0, [10.0, 10.0, 10.0, 10.0], 3),
        (29.9, [10.0, 10.0, 10.0, 10.0], 2),
        (25.0, [5.0, 12.0, 1.0, 1.0], 2),
        (0.0, [10.0, 1.0, 1.0, 1.0], 1),
    ],
)
@pytest.mark.parametrize("least", [0, 1])
def test_another_pass_is_begun_if_it_would_be_over_in_time(end_s, durations_s, num_done, least):
    numbers = list[int]()
    for number in passes_until(end_s, 4, lambda: sum(durations_s[: len(numbers)]), least=least):
        numbers.append(number)
    assert numbers == list(range(num_done))
    assert list(passes_until(-0.1, 4, lambda: 0.0, least=least)) == list(range(least))


def test_a_text_during_which_this_process_was_stopped_is_decoded_again():
    engine, schedule = machine(), Schedule(method="autoregressive", target_lane="cpu0")
    generate, stop = engine.generate, LaneEvent(0.5, "cpu0", "mirrorsd stood still for 9.0 s", is_loss=False)

    def stopped_once(*given, **named):
        made = generate(*given, **named)
        made.trace.events += [stop] * (len(engine.decoded) == 1)
        return made

    engine.generate = stopped_once
    anchors = Anchors({"cpu0": engine.load_target("cpu0")}, context=20, clock=engine.clock)
    run = decode(engine, anchors, schedule, (20, 60), 8)
    assert (len(engine.decoded), run.trace.events) == (2, [])
    assert run.at_s > 0


def test_what_no_profile_comes_out_of_is_timed_again():
    engine, asked = machine(), task(time_s=300.0)
    measuring = Measuring(engine, asked, lambda _step, _share: None, engine.clock, Unfinished(None))
    measuring.run_passes()
    before = Counter(visit.cell for visit in measuring.samples.visits)
    refused = iter(range(2))

    def profile_of(samples):
        if next(refused, None) is not None:
            raise ProfileError("it was noise that was timed")
        return fitted_profile(asked, samples)

    assert measuring.profile_by(profile_of) == fitted_profile(asked, measuring.samples)
    added = Counter(visit.cell for visit in measuring.samples.visits) - before
    assert added == dict.fromkeys(before, 2)


# Progress


@settings(max_examples=5, deadline=None)
@given(
    time_s=st.sampled_from([0.0, 1.0, 30.0, 50.0, 100.0]),
    surprise=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 99),
)
def test_progress_only_rises_from_zero_to_one(time_s, surprise, seed):
    engine = machine(surprise, Weather(seed=seed, slow=1.45))
    shares = []
    calibrate(engine, task(time_s=time_s), lambda _step, share: shares.append(share), clock=engine.clock)
    assert shares == sorted(shares)
    assert (shares[0], shares[-2], shares[-1]) == (0.0, 0.95, 1.0)


def timing_told(time_s):
    """Shares and times that were told while parts were timed in so many seconds."""
    engine, told = machine(), []
    calibrate(
        engine, task(time_s=time_s), lambda step, share: told.append((step, share, engine.clock())), clock=engine.clock
    )
    return [(share, now_s) for step, share, now_s in told if step == "timing parts"]


def test_progress_is_never_behind_the_time_once_the_pass_is_over_that_is_made_in_any_case():
    told = timing_told(400.0)
    first_s = timing_told(1.0)[-1][1]
    after = [(share, now_s) for share, now_s in told if now_s > first_s]
    assert after
    assert all(share >= min(0.9, now_s / 400.0) - 1e-9 for share, now_s in after)


def test_a_first_pass_that_takes_longer_than_there_is_time_tells_how_far_it_is():
    told = timing_told(1.0)
    whole_s = told[-1][1]
    assert whole_s > 10
    halfway = [share for share, now_s in told if now_s < whole_s / 2]
    assert 0.25 < max(halfway) < 0.75
