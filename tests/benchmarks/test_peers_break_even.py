"""How much would have to be accepted to be as fast as another engine: found on a machine of known times."""

import pytest

from tests.benchmarks.scripts import load_script
from tests.sim.worlds.machines import lane, machine


@pytest.fixture(scope="module")
def script():
    return load_script("peers_break_even")


def profile(step_s: float):
    """A verification takes ten seconds, whatever its rows."""
    return machine(lane("target", layer=1, lm_head=0), lane("draft", draft_step=step_s, draft_step_features=step_s))


def test_the_rate_is_the_lowest_that_gains_what_is_wanted(script) -> None:
    found = script.break_even(profile(0.1), 2.0)
    assert found["gain"] == pytest.approx(2.0, rel=0.02)
    assert script.gain(profile(0.1), found["rate"] - 0.02)[0] < 2.0
    assert found["schedule"]["method"] == "speculative"
    assert script.break_even(profile(0.5), 2.0)["rate"] > found["rate"], "a slower draft has to be right more often"


def test_where_no_rate_suffices_there_is_none(script) -> None:
    """Windows have eight tokens at most, so that nine are committed a round."""
    assert script.break_even(profile(0.0001), 9.5) is None
    assert script.gain(profile(0.0001), 1.0)[0] == pytest.approx(9, rel=0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("llama.cpp, 4-bit", True), ("transformers, bfloat16", True), ("plain, openvino, int8", False),
     ("schedule, openvino, int8", False)],
)  # fmt: skip
def test_other_engines_are_told_from_our_lanes(script, name, expected) -> None:
    assert script.is_other(name) is expected
