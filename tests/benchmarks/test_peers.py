"""Comparisons with other engines: ratios of a turn, and what acceptance is needed."""

import numpy as np
import pytest
import torch

from runtime.models.gguf_convert import unpermute_rotary
from tests.benchmarks.scripts import load_script
from tests.sim.worlds.machines import lane, machine

PEERS = load_script("peers")
PLAIN = "plain, openvino, int8"
SECONDS = {PEERS.BASE: [4.0, 8.0, 4.0], PLAIN: [1.0, 2.0, 1.0]}


def test_ratios_are_those_of_a_round():
    """All slow down together: their ratio does not."""
    result = PEERS.result_of(PLAIN, SECONDS)
    assert list(result["times_as_fast_as_transformers"].values()) == pytest.approx([4.0] * 3)


PEERS_BREAK_EVEN = load_script("peers_break_even")


def profile(step_s: float):
    """A verification takes ten seconds, whatever its rows."""
    return machine(lane("target", layer=1, lm_head=0), lane("draft", draft_step=step_s, draft_step_features=step_s))


def test_the_rate_is_the_lowest_that_gains_what_is_wanted():
    found = PEERS_BREAK_EVEN.break_even(profile(0.1), 2.0)
    assert found["gain"] == pytest.approx(2.0, rel=0.02)
    assert PEERS_BREAK_EVEN.gain(profile(0.1), found["rate"] - 0.02)[0] < 2.0
    assert found["schedule"]["method"] == "speculative"
    assert PEERS_BREAK_EVEN.break_even(profile(0.5), 2.0)["rate"] > found["rate"], (
        "a slower draft has to be right more often"
    )


def test_where_no_rate_suffices_there_is_none():
    """Windows have eight tokens at most, so that nine are committed a round."""
    assert PEERS_BREAK_EVEN.break_even(profile(0.0001), 9.5) is None
    assert PEERS_BREAK_EVEN.gain(profile(0.0001), 1.0)[0] == pytest.approx(9, rel=0.1)


def test_pairs_of_llama_cpp_are_the_halves_that_conversion_makes_of_them():
    weight = np.arange(6 * 8 * 5, dtype=np.float32).reshape(48, 5)
    halves = torch.from_numpy(unpermute_rotary(weight, 6))
    assert np.array_equal(load_script("_gguf_export")._paired(halves, 6), weight)


def test_a_round_that_was_disturbed_in_one_prompt_disturbs_nothing():
    quiet = {"seconds": [1.0, 3.0], "tokens": 40, "drafted": 10, "accepted": 5}
    rounds = [quiet, quiet | {"seconds": [9.0, 3.0]}, quiet | {"seconds": [1.0, 8.0]}]
    found = load_script("llamacpp").row_of(2, 0.11, [{"2": one} for one in rounds])
    assert found["measured_s"] == pytest.approx(0.1)
    assert found["error"] == pytest.approx(0.1)
    assert found["accepted"] == 0.5


def test_one_round_is_refused_for_it_has_no_spread(capsys):
    parser = load_script("_common").arguments("what it does", rounds=7)
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", "1"])
    assert "1 rounds have no spread" in capsys.readouterr().err
    assert [parser.parse_args(words).rounds for words in (["--rounds", "2"], [])] == [2, 7]
