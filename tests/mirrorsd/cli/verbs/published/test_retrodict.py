"""`mirrorsd retrodict` by its contract: cases, and a summary with what was skipped."""

from tests.mirrorsd.cli.calls import call, json_of
from tests.planner.retrodict.test_retrodiction import CASES


def test_scripts_get_what_was_promised():
    found = json_of("retrodict", CASES)
    keys = {"id", "question", "drafted", "published", "predicted", "low", "high", "error"}
    assert all(keys <= set(one) for one in found["cases"])
    assert {"ratio", "absolute", "baselines", "skipped"} <= set(found["summary"])
    assert {"median_abs_error", "coverage"} <= set(found["summary"]["ratio"])
    assert found["summary"]["skipped"]["count"] == len(found["summary"]["skipped"]["cases"])


def test_people_get_tables_and_what_they_are_worth():
    told = call("retrodict", CASES)
    assert "Gain of speculation: " in told.stdout
    assert "Not predicted: ane-both (absolute, plain): the case does not say how weights are stored" in told.shown
