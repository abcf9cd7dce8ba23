"""Curves are taken where their source tells all that they are of, and their growth is that of rows up to eight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.scripts import load_script

row_growth = load_script("row_growth")
TOLD = {
    "device": "RTX 3090",
    "backend": "CUDA",
    "model": "llama 8B",
    "weights": "Q4_0",
    "context": "pp512",
    "how": "microbatch prompt",
    "source": "ggml-org/llama.cpp#1",
    "note": "after column",
}


@given(growth=st.floats(0.001, 4), more=st.sets(st.integers(2, 64), min_size=1))
def test_growth_is_that_of_the_rows_up_to_eight_over_one(growth, more):
    times = {rows: 5.0 * (1 + growth * (min(rows, 8) - 1)) for rows in (1, *more)}
    found = row_growth.growth(times)
    assert found is None if min(more) > 8 else found == pytest.approx(growth)
    assert row_growth.growth({rows: times[rows] for rows in more}) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "a card (heading cut)"},
        {"model": "qwen 30B (MoE)"},
        {"backend": "CPU"},
        {"how": "kernel only"},
        {"note": "BEFORE column only"},
        {"source": "unnamed repository, file 1"},
        {"how": "batched decode", "context": "8192"},
        {"how": "batched decode", "context": "64k per slot"},
    ],
)
def test_what_is_not_told_whole_or_is_something_else_is_left_out(changed):
    assert row_growth.is_whole(TOLD)
    assert not row_growth.is_whole(TOLD | changed)


@pytest.mark.parametrize(
    ("name", "weights"), [("BF16", "bf16"), ("Q8_0", "int8"), ("Q4_K_M", "int4"), ("IQ3_XXS", None), ("MXFP4", None)]
)
def test_weights_are_known_by_their_bits(name, weights):
    assert row_growth.weights_of(name) == weights
