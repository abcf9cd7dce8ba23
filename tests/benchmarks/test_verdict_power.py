"""How often a verdict finds a lead, on made-up demos."""

import numpy as np
import pytest

from tests.benchmarks.scripts import load_script

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
SHARES = np.array([0.25, 1.0])[:, None, None]
POPULATION = Population(
    plain=SHARES * np.ones((1, 200)), drafting=0.8 * SHARES * PROMPTS, kinds=KINDS, noises=((0.06, 0.02), (0.03, 0.03))
)


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
