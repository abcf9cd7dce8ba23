"""What is left of a job in stages, and that progress never runs backwards."""

import pytest

from mirrorsd.demo.stages import Stages
from tests.mirrorsd.clock import Clock


@pytest.fixture
def job():
    clock, reports = Clock(100.0), []
    return clock, reports, Stages({"measure": 60.0, "run": 30.0}, reports.append, clock=clock)


def test_what_is_left_is_expected_first_and_then_extrapolated(job):
    clock, reports, stages = job
    report = stages.begin("measure")
    clock.now_s += 20
    report("little done", 0.05)
    report("half done", 0.5)
    assert [(one.step, one.left_s) for one in reports] == [("starting", 90), ("little done", 70), ("half done", 50)]
    assert [one.share for one in reports] == pytest.approx([0, 20 / 90, 20 / 70])


def test_a_stage_that_takes_longer_than_expected_is_not_left_with_less_than_nothing(job):
    clock, reports, stages = job
    report = stages.begin("measure")
    clock.now_s += 100
    report("still starting", 0.0)
    assert reports[-1].left_s == 30


def test_what_is_left_is_never_more_than_the_time_that_was_given():
    clock, reports = Clock(100.0), []
    stages = Stages({"measure": 60.0, "run": 30.0}, reports.append, limit_s=100.0, clock=clock)
    report = stages.begin("measure")
    clock.now_s += 40
    report("a slow start", 0.1)
    assert reports[-1].left_s == 60, "by its own speed the stage alone would take 360 s more"
    clock.now_s += 70
    report("over", 0.5)
    assert reports[-1].left_s == 110 + 15, "the time is over: this stage by its own speed, and little of the next"


def test_a_stage_that_overruns_takes_its_own_time_whatever_the_limit_leaves():
    clock, reports = Clock(100.0), []
    stages = Stages({"measure": 60.0, "run": 30.0}, reports.append, limit_s=100.0, clock=clock)
    report = stages.begin("measure")
    clock.now_s += 80
    report("on a machine that others use", 0.4)
    assert reports[-1].left_s == pytest.approx(80 * 0.6 / 0.4 + 15), "and not the 20 s up to the limit"


def test_progress_never_runs_backwards(job):
    clock, reports, stages = job
    report = stages.begin("measure")
    clock.now_s += 30
    report("half", 0.5)
    stages.expect("run", 3000.0)
    report("half", 0.5)
    stages.begin("run")
    shares = [one.share for one in reports]
    assert shares == sorted(shares)
    assert shares[-1] == shares[1]


def test_a_stage_that_ends_by_time_is_not_extrapolated_from_its_steps():
    clock, reports = Clock(100.0), []
    stages = Stages({"measure": 60.0, "run": 30.0}, reports.append, limit_s=100.0, clock=clock)
    report = stages.begin("measure", by_time=True)
    clock.now_s += 40
    report("prompt 2 of 16", 0.125)
    clock.now_s += 25
    report("prompt 3 of 16", 0.1875)
    assert [one.left_s for one in reports] == [90, 50, 30]
