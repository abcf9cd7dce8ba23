"""Curves are taken where their source tells all that they are of, and what ships is what the script writes."""

import json

import pytest

from hwprofiles.curves.asked import STEPS
from hwprofiles.curves.row_curves import read_curves
from hwprofiles.curves.row_prices import source_errors
from tests.benchmarks.scripts import RESULTS, load_script

row_curves = load_script("row_curves")
left_out_curves = load_script("_left_out_curves")
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
    assert row_curves.is_named(TOLD)
    assert row_curves.tells_rows(TOLD)
    assert not (row_curves.is_named(TOLD | changed) and row_curves.tells_rows(TOLD | changed))


@pytest.mark.parametrize("changed", [{"note": "BEFORE column only"}, {"context": "server"}])
def test_one_row_is_kept_where_further_ones_tell_another_price(changed):
    assert row_curves.is_named(TOLD | changed)
    assert not row_curves.tells_rows(TOLD | changed)


def test_errors_that_ship_are_those_of_the_result_and_never_fall_with_a_step_away():
    found = json.loads((RESULTS / "row-curves.json").read_text())
    assert found["num_curves"] == len(read_curves())
    shipped = [source_errors()[step] for step in STEPS]
    assert shipped == sorted(shipped)
    assert shipped[0] == found["share_of_log_ratio"]["device"]["of_90"]
    assert found["plain_speed"] == left_out_curves.plain_left_out(read_curves())
    assert found["plain_speed"]["device"]["median"] < 0.13
    assert found["plain_speed"]["device"]["held"] > 0.87
