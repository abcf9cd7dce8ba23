"""Methods are compared on the same lanes, fast or slow."""

import pytest

from tests.benchmarks.scripts import load_script
from tests.planner.synthetic import acceptance_record, machine


@pytest.mark.parametrize("lanes", [("target", "draft"), ("draft", "target")])
def test_both_methods_have_the_lanes_that_were_asked_for(lanes) -> None:
    found = load_script("overlap").best_on(lanes, machine(), acceptance_record())
    assert {method: one.schedule.method for method, one in found.items()} == {
        "speculative": "speculative",
        "mirror": "mirror",
    }
    assert {(one.schedule.target_lane, one.schedule.draft_lane) for one in found.values()} == {lanes}
