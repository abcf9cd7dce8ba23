"""Scripts that judge demos and replays, on made-up ones."""

from math import exp

import numpy as np
import pytest

from calibrate.profiling.anchors import AnchorSample, SharedAnchor
from calibrate.profiling.samples import Samples
from sim.acceptance.replay import Replay
from sim.world import simulate
from tests.benchmarks.scripts import RESULTS, load_script
from tests.sim.worlds.machines import machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import mirror

VERDICT_POWER = load_script("verdict_power")
Design, Population, figures, summary = (
    VERDICT_POWER.Design,
    VERDICT_POWER.Population,
    VERDICT_POWER.figures,
    VERDICT_POWER.summary,
)
RANDOM = np.random.default_rng(5)
PROMPTS = np.exp(RANDOM.normal(0, 0.3, (3, 200)))
KINDS = tuple(np.arange(kind, 200, 4) for kind in range(4))
POPULATION = Population(plain=np.ones((1, 200)), drafting=0.8 * PROMPTS, kinds=KINDS, noises=(0.02, 0.03))


@pytest.mark.parametrize("lead", [1.0, 1.3])
def test_nine_of_ten_intervals_hold_the_picked_schedules_own_lead(lead):
    found = figures(POPULATION, Design(40, 6), lead, 400)
    assert 0.82 <= found["coverage"] <= 0.97
    assert found["denied"] < 0.12


def test_known_rounds_and_larger_leads_are_found_more_often():
    powers = [
        figures(POPULATION, design, lead, 300)["power"]
        for design, lead in ((Design(12, 12, by_rounds=False), 1.1), (Design(40, 6), 1.1), (Design(40, 6), 1.5))
    ]
    assert powers == sorted(powers)
    assert powers[0] + 0.1 < powers[1]
    assert powers[2] > 0.95


def test_the_table_has_a_row_for_every_design():
    found = {"power": 0.5, "coverage": 0.9}
    leads = ("1.0", "1.05", "1.1", "1.15", "1.26")
    rows = list(summary({"designs": {"a": dict.fromkeys(leads, found)}}))
    assert rows[0].startswith("| prompts | lead 1.05 |")
    assert rows[2:] == ["| a | 50% | 50% | 50% | 50% | 90% to 90% |"]


DEMOS = load_script("demos")


@pytest.fixture
def demos(monkeypatch):
    """Figures of made-up demos: of each the anchors of its runs, and its calibration's samples."""

    def figures(*of_demos):
        monkeypatch.setattr(DEMOS, "run_anchors", lambda place: of_demos[place][0])
        monkeypatch.setattr(DEMOS, "_samples", lambda place: of_demos[place][1])
        return DEMOS.machine(range(len(of_demos)))

    return figures


def test_anchors_in_a_run_are_off_by_half_of_what_lies_between_their_halves():
    ((inner, _),) = DEMOS.pace_errors([9.0, 1.1, 1.0, 1.1, 1.0, 9.0])
    assert exp(2 * inner) == pytest.approx(1.1)


def test_anchors_around_a_run_are_off_by_what_those_in_it_say_otherwise():
    ((_, outer),) = DEMOS.pace_errors([1.0, 2.0, 4.0, 2.0, 4.0, 2.0])
    assert exp(outer) == pytest.approx(1.5 / 3.0)


def test_lanes_at_once_are_compared_with_the_nearest_anchors_alone():
    alone = [AnchorSample(0.0, "a", 1.0), AnchorSample(3.0, "a", 5.0), AnchorSample(2.0, "b", 2.0)]
    samples = Samples(anchors=alone, shared_anchors=[SharedAnchor(1.0, ("b", "a"), (3.0, 4.0))])
    assert list(DEMOS.slowdowns(samples)) == [(1.5, 4.0)]


def at_once(*pairs):
    """Samples of a calibration whose anchors take a second alone."""
    alone = [AnchorSample(0.0, "a", 1.0), AnchorSample(0.0, "b", 1.0)]
    return Samples(anchors=alone, shared_anchors=[SharedAnchor(0.0, ("a", "b"), pair) for pair in pairs])


def test_figures_are_of_all_demos_together(demos):
    one = [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0]], at_once((1.6, 1.8), (1.0, 1.2))
    other = [[exp(0.2), 1.0, 1.0, 1.0, 1.0, exp(0.2)]], at_once((1.4, 3.0))
    found = demos(one, other)
    assert found["pace_error"] == pytest.approx({"in_between": 0.0, "before_and_after": 0.1, "of": 2})
    assert (found["at_once"]["slow"], found["at_once"]["of"]) == (1, 3)
    assert found["at_once"]["slowdown"]["slow"]["median"] == pytest.approx(1.7)
    assert found["at_once"]["slowdown"]["others"]["median"] == pytest.approx(1.3)


def test_anchors_explain_most_of_what_changes_in_the_committed_demos():
    read = load_script("_common").read_result
    for name in ("demos", "demos-torch"):
        error = read(RESULTS / f"{name}.json")["machine"]["pace_error"]
        assert error["in_between"] < 0.57 * error["before_and_after"]


SAMPLED_REPLAY = load_script("sampled_replay")


def test_samples_of_one_distribution_differ_by_a_few_standard_errors():
    random = np.random.default_rng(3)
    found = [SAMPLED_REPLAY.compared(*random.gamma(2.0, size=(2, 500)).tolist()) for _ in range(200)]
    for name in ("mean_differs_by", "spread_differs_by"):
        values = [one[name] for one in found]
        assert abs(np.mean(values)) < 0.3
        assert 0.7 < np.std(values) < 1.4


def test_another_mean_and_another_spread_are_told():
    random = np.random.default_rng(4)
    one, other, wider = (random.normal(mean, spread, 1000).tolist() for mean, spread in ((2, 1), (2.3, 1), (2, 1.3)))
    assert SAMPLED_REPLAY.compared(one, other)["mean_differs_by"] > 4
    assert abs(SAMPLED_REPLAY.compared(one, other)["spread_differs_by"]) < 4
    assert SAMPLED_REPLAY.compared(one, wider)["spread_differs_by"] > 4


def test_a_text_has_the_same_rounds_and_hits_in_either_world():
    texts, asked = record(prompt("1101", exit_="0010")), mirror("exit")
    outcomes = Replay(texts).outcomes(asked, None)
    trace = simulate(asked, machine(), texts)[0]
    assert SAMPLED_REPLAY.of_outcomes(outcomes, 0) == SAMPLED_REPLAY.of_trace(trace) == pytest.approx((2.0, 0.5))
