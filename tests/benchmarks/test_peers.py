"""The comparison with other engines: ratios of a turn, and which texts have to be the same."""

import pytest

from tests.benchmarks.scripts import load_script

script = load_script("peers")
PLAIN_TORCH, PLAIN_INT8 = (script._plain_name(*script.PLAIN[index]) for index in (0, 2))
SCHEDULED = "schedule, openvino, int8"
SECONDS = {script.BASE: [4.0, 8.0, 4.0], PLAIN_TORCH: [2.0, 4.0, 2.0], PLAIN_INT8: [1.0, 2.0, 1.0]}
TEXTS = {script.BASE: [(1,), (2,), (3,)], PLAIN_TORCH: [(1,), (2,), (4,)], PLAIN_INT8: [(1,), (5,), (4,)]}


def test_ratios_are_those_of_a_round() -> None:
    """All slow down together: their ratio does not."""
    result = script.result_of(PLAIN_INT8, SECONDS, TEXTS)
    assert list(result["times_as_fast_as_transformers"].values()) == pytest.approx([4.0] * 3)


def test_plain_decoding_is_compared_with_that_of_torch() -> None:
    assert script.result_of(PLAIN_INT8, SECONDS, TEXTS)[f"texts of {PLAIN_TORCH}"] == "2 of 3"
    assert script.result_of(script.BASE, SECONDS, TEXTS)[f"texts of {PLAIN_TORCH}"] == "2 of 3"
    assert not any(key.startswith("texts") for key in script.result_of(PLAIN_TORCH, SECONDS, TEXTS))


def test_a_schedule_is_compared_with_plain_decoding_by_the_same_back_end_and_weights() -> None:
    seconds, texts = SECONDS | {SCHEDULED: [1.0, 1.0, 1.0]}, TEXTS | {SCHEDULED: TEXTS[PLAIN_INT8]}
    assert script.result_of(SCHEDULED, seconds, texts)[f"texts of {PLAIN_INT8}"] == "3 of 3"
