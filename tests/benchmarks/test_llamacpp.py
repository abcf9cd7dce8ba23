"""A model goes to llama.cpp as it came from there, and what is compared is medians by prompt."""

import numpy as np
import pytest
import torch

from runtime.models.gguf_convert import unpermute_rotary
from tests.benchmarks.scripts import load_script


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
