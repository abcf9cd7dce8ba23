"""The committed predictions of public measurements: they are today's, and `plan` states their blind errors."""

import json
from math import exp, log
from statistics import median

import numpy as np
import pytest

from planner.published.published_gains import ACCURACY, PROMISED, published_like
from planner.retrodict.cases import Case, load_cases
from planner.retrodict.retrodiction import retrodict
from tests.benchmarks.scripts import RESULTS, load_script

SCRIPT = load_script("retrodictions")
STORED = json.loads((RESULTS / "retrodictions.json").read_text())
COLUMNS = STORED["columns"]


def test_known_cases_are_predicted_better_than_by_anybodys_predictors():
    """In-sample: the 18 cases were known when their predictor was built."""
    told = retrodict(load_cases(SCRIPT.CASES)).summary()
    assert told["ratio"]["num"] == 34
    assert told["ratio"]["median_abs_error"] <= 0.1
    assert 0.75 <= told["ratio"]["coverage"] <= 0.97
    assert all(2 * told["ratio"]["median_abs_error"] < one["ratio"] for one in told["baselines"].values())


@pytest.mark.parametrize("name", ["in-sample", "seen"])
def test_what_is_stored_of_predictions_is_todays(name):
    """Who changes a prediction on purpose runs benchmarks/retrodictions.py, and says in the commit what happened."""
    files = [SCRIPT.CASES] if name == "in-sample" else SCRIPT.SEEN
    today, stored = retrodict([one for file in files for one in load_cases(file)]), COLUMNS[name]
    assert today.summary()["ratio"] == pytest.approx(stored["summary"]["ratio"])
    for one, kept in zip(today.found, stored["cases"], strict=True):
        entry = one.as_entry()
        numbers = {key: entry[key] for key in ("published", "predicted", "low", "high")}
        assert numbers == pytest.approx({key: kept[key] for key in numbers}, rel=1e-3), kept["id"]


def test_what_a_plan_says_of_such_predictions_are_the_blind_results():
    files = dict(zip(("blind", "blind again", "blind, third"), SCRIPT.SEEN[1:], strict=True))
    kinds = {one.id: one.drafter.kind for file in files.values() for one in load_cases(file)}
    gains = [one for name in files for one in COLUMNS[name]["cases"] if one["question"] == "ratio"]
    for of in PROMISED:
        alike = [one["published"] for one in gains if of.low <= one["predicted"] < of.high]
        assert (len(alike), sum(gain > 1 for gain in alike)) == (of.num, of.num_gains)
    others = [one for one in gains if kinds[one["id"]] in ("draft", "dflash", "dspark", "lookup")]
    heads = [one for one in gains if one not in others]
    all_off, of_heads, of_others = (
        f"{100 * median(abs(one['error']) for one in own):.0f} %" for own in (gains, heads, others)
    )
    factor = exp(np.quantile([abs(log(one["published"] / one["predicted"])) for one in gains], 0.9))
    assert ACCURACY.startswith(f"{len(gains)} published speed-ups")
    assert f"median error {all_off}, nine of ten within a factor of {factor:.1f}" in ACCURACY
    assert f"median error {of_heads} with heads of the target, {of_others} with other drafters" in ACCURACY
    by_acceptance = STORED["gains_by_acceptance"]["all blind"].values()
    assert sum(one["num"] for one in by_acceptance) == len(gains)
    given, assumed = (f"{100 * one['median_abs_error']:.0f} %" for one in by_acceptance)
    assert f"{given} where the source gives acceptance, {assumed} where it is assumed" in ACCURACY


def test_where_errors_are_from_is_todays():
    """By whether sources tell acceptance, and by the parts of a speed; its error has those of all of them."""
    seen = [one for file in (SCRIPT.CASES, *SCRIPT.SEEN) for one in load_cases(file)]
    cases = [one for one in seen if isinstance(one, Case)]
    assert SCRIPT.gains_by_acceptance(COLUMNS, cases) == STORED["gains_by_acceptance"]
    parts = SCRIPT.parts(retrodict([one for file in SCRIPT.SEEN for one in load_cases(file)]))
    assert parts == pytest.approx(STORED["parts"], rel=1e-3)
    assert max(parts[name] for name in ("plain speed", "tokens of a round", "cost of a round")) < parts["speed"]


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.9, "below plain decoding"),
        (1.0, "at 1 to 1.4 times plain decoding"),
        (1.4, "at 1.4 times plain decoding or more"),
    ],
)
def test_a_plan_names_the_published_gains_that_were_predicted_like_its_own(gain, words):
    assert f"predicted {words}, " in published_like(gain)


def test_nothing_blind_was_known_before():
    """Each set was collected when those before it were known."""
    sets = [
        {one.source for one in load_cases(file)}
        for file in (SCRIPT.CASES, SCRIPT.MORE_CASES, SCRIPT.BLIND_CASES, SCRIPT.MORE_BLIND_CASES)
    ]
    assert not (sets[0] | sets[1]) & sets[2]
    assert not (sets[0] | sets[1] | sets[2]) & sets[3]
