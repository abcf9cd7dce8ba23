"""Two samples of texts are compared by mean and by spread; what a text has is counted alike in both worlds."""

import numpy as np
import pytest

from sim.acceptance.replay import Replay
from sim.world import simulate
from tests.benchmarks.scripts import load_script
from tests.sim.worlds.machines import machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import mirror


@pytest.fixture(scope="module")
def script():
    return load_script("sampled_replay")


def test_samples_of_one_distribution_differ_by_a_few_standard_errors(script) -> None:
    random = np.random.default_rng(3)
    found = [script.compared(*random.gamma(2.0, size=(2, 500)).tolist()) for _ in range(200)]
    for name in ("mean_differs_by", "spread_differs_by"):
        values = [one[name] for one in found]
        assert abs(np.mean(values)) < 0.3
        assert 0.7 < np.std(values) < 1.4


def test_another_mean_and_another_spread_are_told(script) -> None:
    random = np.random.default_rng(4)
    one, other, wider = (random.normal(mean, spread, 1000).tolist() for mean, spread in ((2, 1), (2.3, 1), (2, 1.3)))
    assert script.compared(one, other)["mean_differs_by"] > 4
    assert abs(script.compared(one, other)["spread_differs_by"]) < 4
    assert script.compared(one, wider)["spread_differs_by"] > 4


def test_a_text_has_the_same_rounds_and_hits_in_either_world(script) -> None:
    texts, asked = record(prompt("1101", exit_="0010")), mirror("exit")
    outcomes = Replay(texts).outcomes(asked, None)
    trace = simulate(asked, machine(), texts)[0]
    assert script.of_outcomes(outcomes, 0) == script.of_trace(trace) == pytest.approx((2.0, 0.5))
