"""Curves are taken where their source tells all that they are of, and what ships is what the script writes."""

import json

import pytest

from hwprofiles.curves.row_curves import read_curves
from hwprofiles.curves.row_prices import STEPS, source_errors
from tests.benchmarks.scripts import RESULTS, load_script

row_curves = load_script("row_curves")
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


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "a card (heading cut)"},
        {"weights": "K-quant (heading cut)"},
        {"how": "kernel only"},
        {"note": "BEFORE column only"},
        {"source": "unnamed repository, file 1"},
        {"source": "stored file id 1"},
        {"device": "2x RTX 3090"},
        {"how": "batched decode", "context": "8192"},
    ],
)
def test_what_is_not_told_whole_or_is_something_else_is_left_out(changed):
    assert row_curves.is_whole(TOLD)
    assert not row_curves.is_whole(TOLD | changed)


def test_what_routed_experts_have_of_a_rows_weights_by_hand():
    """Two of eight experts: 3 of the 12 billion that they have, beside 1 that every token reads."""
    assert row_curves.Read(4.0, 0, 13.0, 8, 2).expert_share == pytest.approx(0.75)


def test_errors_that_ship_are_those_of_the_result_and_never_fall_with_a_step_away():
    found = json.loads((RESULTS / "row-curves.json").read_text())
    assert found["num_curves"] == len(read_curves())
    shipped = [source_errors()[step] for step in STEPS]
    assert [one.rows for one in shipped] == sorted(one.rows for one in shipped)
    assert shipped[0].rows == found["share_of_log_ratio"]["device"]["of_90"]
    assert shipped[0].reading == found["efficiency"]["device"]["of_90"]
