"""How right a calibration of a hundred seconds is on machines that change their speed within seconds.

The machine is one of laws, so the truth is known; its clock is its own, so a hundred seconds take a moment.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from math import hypot, log
from statistics import fmean, median

import numpy as np
import pytest

from calibrate.profiling.calibration import calibrate
from costs.cost_model import cost_of
from costs.prices import pass_s
from hwprofiles.profile import Profile
from tests.calibrate.profiling.fake_machine.asked import CONTEXTS, SPEEDS, machine, task
from tests.calibrate.profiling.fake_machine.engine import LANES, FakeEngine
from tests.calibrate.profiling.fake_machine.laws import NUM_LAYERS
from tests.calibrate.profiling.fake_machine.weather import Weather

SEEDS = range(60)
ROWS, CONTEXT = 5, sum(CONTEXTS) // 2
BRANCHES, WAKE_S, FEATURES_S = 8, 2e-3, 4e-3
WEATHERS = {
    "two speeds": {"slow": 1.45},
    "spikes": {"slow": 1.45, "spike_every": 100},
    "drift": {"slow": 1.45, "drift": 0.2},
    "quick changes": {"slow": 1.2, "fast_s": 1.0, "slow_s": 1.0},
}


@dataclass(frozen=True)
class Error:
    """The logarithm of what a calibration has over the truth, both over the anchor, and the error that it states."""

    value: float
    stated: float

    @property
    def is_held(self) -> bool:
        return abs(self.value) <= self.stated


@dataclass(frozen=True)
class Outcome:
    """A calibration, and by lane the logarithms of what it has over the truth.

    `verify` is one row, absolute; `rows` are verifications of several and `step` steps of the draft, both over the
    anchor. What runs alone can tell are first steps of `branches` and `passes` that reply states.
    """

    profile: Profile
    verify: dict[str, float]
    rows: dict[str, float]
    step: dict[str, float]
    branches: list[Error]
    passes: list[Error]

    @property
    def common(self) -> float:
        return fmean(self.verify.values())

    @property
    def apart(self) -> float:
        return max(self.verify.values()) - min(self.verify.values())


def calibrated(seed: int, **changes: float) -> Outcome:
    weather = Weather(seed=seed, **changes)
    engine = machine(weather=weather, first_step_s=WAKE_S, features_s=FEATURES_S)
    profile = calibrate(engine, task(time_s=100.0, exit_features=(1, 3)), clock=engine.clock).profile
    assert engine.clock() < 110
    assert profile.notes == ()
    spike_s = weather.spike_s / weather.spike_every if weather.spike_every else 0.0
    verify, rows, step = dict[str, float](), dict[str, float](), dict[str, float]()
    for spec in LANES:
        lane, laws = profile.lane(spec.name), engine.laws[spec.name]
        slower = weather.mean(len(spec.cores)) * (1 + weather.drift * engine.clock() / 200)
        one_s = slower * laws.target_s("verify", 1, CONTEXT, None) + spike_s
        several_s = slower * laws.target_s("verify", ROWS, CONTEXT, None) + spike_s
        step_s = slower * laws.step_s(1, CONTEXT) + spike_s
        verify[spec.name] = log(pass_s(cost_of(lane), NUM_LAYERS, 1, CONTEXT) / one_s)
        rows[spec.name] = log(
            pass_s(cost_of(lane), NUM_LAYERS, ROWS, CONTEXT) / lane.anchor.seconds * one_s / several_s
        )
        step[spec.name] = log(lane.draft_step.at(1, CONTEXT) / lane.anchor.seconds * one_s / step_s)
    return Outcome(profile, verify, rows, step, *priced(engine, profile))


def priced(engine: FakeEngine, profile: Profile) -> tuple[list[Error], list[Error]]:
    """Of first steps of branches, and of passes that reply states, on every lane that has some."""
    branches, passes = list[Error](), list[Error]()
    for name, law in engine.laws.items():
        lane, one_s = profile.lane(name), law.target_s("verify", 1, CONTEXT, None)
        whole_s = pass_s(cost_of(lane), NUM_LAYERS, ROWS, CONTEXT) + lane.overhead("features").seconds
        true_s = law.target_s("verify", ROWS, CONTEXT, None) + FEATURES_S / law.speed
        stated = hypot(lane.layer.relative_error, lane.overhead("features").relative_error)
        passes.append(Error(log(whole_s / lane.anchor.seconds * one_s / true_s), stated))
        slowed = [entry.relative_error for entry in profile.contention if entry.lanes[1] == name]
        if slowed:  # branches are next to a target
            step_s = lane.draft_step.at(BRANCHES, CONTEXT) + lane.overhead("first_step").seconds
            true_s = law.step_s(BRANCHES, CONTEXT) + WAKE_S
            stated = hypot(lane.draft_step.relative_error, max(slowed))
            branches.append(Error(log(step_s / lane.anchor.seconds * one_s / true_s), stated))
    return branches, passes


@cache
def outcomes(name: str) -> list[Outcome]:
    return [calibrated(seed, **WEATHERS[name]) for seed in SEEDS]


@pytest.mark.parametrize("name", WEATHERS)
def test_lanes_are_as_far_off_as_each_other(name):
    """What all lanes are off by cancels from every comparison; what sets them apart does not."""
    apart = [one.apart for one in outcomes(name)]
    assert median(apart) < 0.055
    assert np.quantile(apart, 0.95) < 0.15


@pytest.mark.parametrize("name", WEATHERS)
def test_times_are_right_on_average(name):
    off = [one.common for one in outcomes(name)]
    assert abs(fmean(off)) < 0.03
    assert np.quantile(np.abs(off), 0.95) < 0.08


@pytest.mark.parametrize("name", WEATHERS)
def test_what_is_relative_to_the_anchors_is_right_to_two_percent(name):
    for part in ("rows", "step"):
        # over 240 seeds with spikes steps are 1.6 % too slow and 2.1 % off in the median; sixty seeds say no more
        luck = 0.005 if (name, part) == ("spikes", "step") else 0.0
        off = [error for one in outcomes(name) for error in getattr(one, part).values()]
        assert abs(median(off)) < 0.02 + luck
        assert median(map(abs, off)) < 0.02 + luck


def held(name: str) -> tuple[list[bool], list[bool]]:
    """Whether intervals hold lanes beside each other, and each beside all of them."""
    ratios, lanes = list[bool](), list[bool]()
    for one in outcomes(name):
        errors = {lane: one.profile.lane(lane).relative_error for lane in SPEEDS}
        ratios += [
            abs(one.verify[a] - one.verify[b]) <= hypot(errors[a], errors[b]) for a, b in combinations(SPEEDS, 2)
        ]
        lanes += [abs(one.verify[lane] - one.common) <= errors[lane] for lane in SPEEDS]
    return ratios, lanes


@pytest.mark.parametrize("name", WEATHERS)
def test_about_nine_intervals_of_ten_hold_lanes_beside_each_other_and_all_of_them(name):
    ratios, lanes = held(name)
    most = 1.0 if name == "spikes" else 0.98
    assert 0.8 <= fmean(ratios) <= most
    assert 0.8 <= fmean(lanes) <= most


def test_about_nine_intervals_of_ten_hold_the_machines_speed_over_all_weathers():
    """One weather has sixty draws of one number, too few to tell 0.9 from 0.75; with spikes 0.77 of 120 are held."""
    shares = [fmean(abs(one.common) <= one.profile.relative_error for one in outcomes(name)) for name in WEATHERS]
    assert min(shares) >= 0.7
    assert 0.8 <= fmean(shares) <= 0.98


def test_intervals_are_no_wider_than_that_over_all_weathers():
    """One weather's sixty seeds may all be held by luck: with spikes 0.99 are, and 0.93 over 240."""
    for each in zip(*map(held, WEATHERS), strict=True):
        assert fmean(chain.from_iterable(each)) <= 0.98


@pytest.mark.parametrize("name", ["two speeds", "quick changes"])
def test_branches_and_passes_that_reply_states_are_right_to_some_percent_nine_of_ten_within_their_intervals(
    name,
):
    """Without their overheads they would be off by a fourth and by a tenth."""
    branches = [error for one in outcomes(name) for error in one.branches]
    passes = [error for one in outcomes(name) for error in one.passes]
    assert abs(median(one.value for one in branches)) < 0.02
    assert np.quantile([abs(one.value) for one in branches], 0.9) < 0.06
    assert abs(median(one.value for one in passes)) < 0.01
    assert np.quantile([abs(one.value) for one in passes], 0.9) < 0.035
    assert fmean(one.is_held for one in branches) >= 0.8
    assert 0.8 <= fmean(one.is_held for one in passes) <= 0.98


def test_intervals_of_branches_are_no_wider_than_that_over_both_weathers():
    """Over 240 seeds 0.976 of 960 are held; of the 240 here a few more or fewer are, by luck."""
    found = [one for name in ("two speeds", "quick changes") for one in outcomes(name)]
    assert fmean(error.is_held for one in found for error in one.branches) <= 0.99
