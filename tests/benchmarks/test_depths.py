"""What KV caches add by context: the fit of public series, and the shares of the weights' bandwidth that ship."""

import json
from dataclasses import replace

import pytest

from hwprofiles.sheets import device_sheet
from sim.derived.sheet_numbers import guesses
from tests.benchmarks.scripts import RESULTS, load_script

depths = load_script("_depths")
STORED = json.loads((RESULTS / "kernel-laws.json").read_text())["by_context"]
SERIES = depths.read_depths()


def test_series_are_of_many_devices_and_engines_and_no_device_is_both_fitted_and_held_out():
    fitted, held_out = (
        {one.told["device"] for one in SERIES if one.told["set"] == told} for told in ("fit", "held-out")
    )
    assert len(SERIES) >= 40
    assert not fitted & held_out
    assert len(fitted | held_out) >= 12
    assert {"llama.cpp", "ik_llama.cpp", "mlx", "vllm"} <= {one.told["engine"].split()[0] for one in SERIES}
    assert all(len(one.contexts) >= 3 and one.told["source"] and one.told["date"] for one in SERIES)


def test_an_efficiency_is_found_again_whatever_else_a_token_takes():
    one = next(one for one in SERIES if one.told["kind"] == "cpu")
    weights_s, shape = 2e-11, one.model.shape
    start_s = weights_s * (shape.num_layers * shape.layer_weight_bytes(one.model.weights, 1) + shape.head_bytes("q4_0"))
    made_up = replace(one, seconds=start_s + one.cache_bytes * weights_s / 0.4)
    assert made_up.efficiency == pytest.approx(0.4)
    assert made_up.error(0.4) == pytest.approx(0, abs=1e-9)
    assert made_up.error(1.0) < -0.05


def test_what_is_stored_is_of_todays_table_and_guesses():
    found = depths.depth_results(SERIES, STORED["own_lanes"])
    today, stored = ([one["efficiency"] for one in of["series"]] for of in (found, STORED))
    assert today == pytest.approx(stored, rel=1e-3)
    for kind, judged in found["guesses"].items():
        kept = STORED["guesses"][kind]
        assert (judged["guess"], judged["span"]) == (kept["guess"], kept["span"])
        assert judged["held_out"]["inside"] == kept["held_out"]["inside"]


def test_guesses_contain_what_was_fitted_and_as_many_held_out_series_as_intervals_should():
    num = inside = 0
    for kind, of in STORED["guesses"].items():
        guess = guesses()["cache_efficiency"][kind]
        assert (of["guess"], of["span"]) == (guess.value, [guess.lowest, guess.highest])
        fitted = [of["fitted"]["value"], *of["fitted"]["without"].values()]
        assert all(guess.lowest <= one <= guess.highest for one in fitted)
        num, inside = num + of["held_out"]["num"], inside + of["held_out"]["inside"]
    assert num >= 15
    assert 0.75 <= inside / num <= 0.97


def test_on_cpus_held_out_the_law_is_nearer_than_the_speed_of_weights():
    held_out = STORED["guesses"]["cpu"]["held_out"]
    assert held_out["error"]["median"] < held_out["error_at_weights_speed"]["median"]
    assert held_out["error"]["worst"] < held_out["error_at_weights_speed"]["worst"] / 1.5


@pytest.mark.parametrize("name", depths.MAKES.values())
def test_sheets_of_our_own_makes_have_the_efficiency_of_their_lanes(name):
    told, of = device_sheet(name).cache_efficiency, STORED["own_lanes"][name]
    assert told.value == pytest.approx(of["efficiency"], rel=0.06)
    assert told.lowest <= of["span"][0] * 1.05
    assert told.highest >= of["span"][1] * 0.95
