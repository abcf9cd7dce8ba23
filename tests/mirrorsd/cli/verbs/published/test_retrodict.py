"""`mirrorsd retrodict` by its contract: cases, and a summary with what was skipped."""

import json

from tests.mirrorsd.cli.calls import call, json_of
from tests.planner.retrodict.test_retrodiction import TOLD
from tests.planner.retrodict.test_stored_predictions import SCRIPT


def test_scripts_get_what_was_promised():
    found = json_of("retrodict", SCRIPT.CASES)
    keys = {"id", "question", "drafted", "published", "predicted", "low", "high", "error"}
    assert all(keys <= set(one) for one in found["cases"])
    assert {"ratio", "absolute", "baselines", "skipped"} <= set(found["summary"])
    assert {"median_abs_error", "coverage"} <= set(found["summary"]["ratio"])
    assert found["summary"]["skipped"]["count"] == len(found["summary"]["skipped"]["cases"])


def test_people_get_tables_and_what_they_are_worth():
    told = call("retrodict", SCRIPT.CASES)
    assert "Gain of speculation: " in told.stdout
    assert "Not predicted: ane-both (absolute, plain): the case does not say how weights are stored" in told.shown


def test_each_line_of_a_table_says_what_was_drafted_after_how_many_tokens(tmp_path):
    path = tmp_path / "cases.yaml"
    speeds = {"1k": 60.0, "16k, 2 drafted": 50.0, "[b]code": 65.0}
    by_context = TOLD | {"plain_tokens_per_s": {"1k": 40.0, "16k": 30.0}, "published_tokens_per_s": speeds}
    path.write_text(json.dumps({"cases": [by_context, TOLD | {"id": "none", "device": "abacus"}]}))
    told = call("retrodict", path)
    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert lines.count("case setting drafted cached published predicted interval error") == 2
    assert any(line.startswith("a card 1k 4 assumed 1,024 60.0 ") for line in lines)
    assert any(line.startswith("a card 16k, 2 drafted 2 16,384 50.0 ") for line in lines)
    assert any(line.startswith("a card [b]code 4 assumed 512 65.0 ") for line in lines)
    assert any(line.startswith("a card 0 16,384 30.0 ") for line in lines)
    assert "none (ratio, absolute, plain): no shipped device is called 'abacus'" in told.shown
    one_lost = TOLD["published_tokens_per_s"] | {"batch 8": 400.0}
    path.write_text(json.dumps({"cases": [TOLD | {"published_tokens_per_s": one_lost}]}))
    assert (
        f"a speed of {TOLD['id']} (ratio, absolute): the setting of a speed should be" in call("retrodict", path).shown
    )
    path.write_text(json.dumps({"cases": [TOLD]}))
    assert "case drafted published predicted" in " ".join(call("retrodict", path).stdout.split())
