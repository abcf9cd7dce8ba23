"""Kernel laws are found again in times that follow one, and sheets give those that were fitted."""

import csv
import json

import pytest

from hwprofiles.sheets import device_sheet
from tests.benchmarks.scripts import RESULTS, load_script

kernel_laws = load_script("kernel_laws")
BANDWIDTH, PEAK = 2e12, 3e14
LAW = kernel_laws.Law(start_s=4e-6, memory_efficiency=0.8, unhidden_share=0.4)
FITTED = json.loads((RESULTS / "kernel-laws.json").read_text())


def products(model, widths):
    for tp in (1, 2):
        for rows in (1, 8, 64):
            for n, k in widths:
                seconds = 4e-6 + 2 * n * k / (0.8 * BANDWIDTH) + 0.4 * 2 * rows * n * k / PEAK
                yield kernel_laws.Product(model, tp, "mlp", rows, n, k, seconds)


def test_a_law_is_found_again_and_a_model_left_out_is_predicted():
    timed = [*products("a", [(4096, 4096), (14336, 4096)]), *products("b", [(8192, 8192), (1024, 8192)])]
    found = kernel_laws.fitted(timed, BANDWIDTH, PEAK)
    assert found["law"] == pytest.approx(LAW._asdict())
    assert found["error"]["worst"] < 1e-9
    assert set(found["left_out"]) == {"a", "b"}


def test_rows_beyond_those_of_verifications_and_what_is_no_product_are_left_out(tmp_path):
    table = tmp_path / "vidur_ops.csv"
    head = ["device", "model", "tp", "op", "rows", "n", "k", "time_us"]
    lines = [["a100", "m", 1, "mlp", 1, 64, 32, 5.0], ["a100", "m", 1, "mlp", 128, 64, 32, 9.0]]
    lines += [["a100", "m", 1, "norm", 1, "", "", 2.0]]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    assert kernel_laws.read_products(table) == {"a100": [("m", 1, "mlp", 1, 64, 32, pytest.approx(5e-6))]}


@pytest.mark.parametrize("device", FITTED["devices"])
def test_sheets_give_the_laws_that_were_fitted_with_their_spans(device):
    sheet, fitted = device_sheet(device), FITTED["devices"][device]
    for name, value in fitted["law"].items():
        field = {"start_s": "kernel_start_s"}.get(name, name)
        given = getattr(sheet, field)
        assert given.value == pytest.approx(value, rel=0.02), field
        low, high = fitted["span"][name]
        assert given.lowest <= low * 1.02, field
        assert given.highest >= high * 0.98, field
        assert given.status == "measured"


@pytest.mark.parametrize("device", FITTED["devices"])
def test_layers_of_models_left_out_are_within_some_percent(device):
    error = FITTED["devices"][device]["error"]
    assert error["median"] <= 0.04
    assert error["worst"] <= 0.18
