"""`mirrorsd curve`: the price of rows as a table, a picture and JSON."""

import json

import pytest
from typer.testing import CliRunner

from mirrorsd.cli.app import app
from mirrorsd.cli.verbs.curve import EXAMPLE

ASKED = EXAMPLE.split()[1:]


def run(*words, exit_code=0):
    result = CliRunner().invoke(app, [*ASKED, *map(str, words)])
    assert result.exit_code == exit_code, result.output
    return result


def test_scripts_get_what_was_promised():
    found = json.loads(run("--rows", "1,2,4,8", "--context", "4096", "--json").stdout)
    assert {"target", "device", "engine", "weights", "context", "source", "rows"} <= set(found)
    assert (found["device"], found["weights"], found["context"]) == ("rtx4090", "bf16", 4096)
    assert [one["rows"] for one in found["rows"]] == [1, 2, 4, 8]
    assert all(one["low"] < one["time_s"] < one["high"] for one in found["rows"])


def test_an_engine_has_its_own_price_of_rows_and_the_default_is_said():
    found = {
        engine: json.loads(run("--device", "rtx4090", "--weights", "q4_k_m", *words, "--json").stdout)
        for engine, words in ((None, ()), ("vllm", ("--engine", "vllm")))
    }
    assert {engine: one["engine"] for engine, one in found.items()} == {None: "llama.cpp", "vllm": "vllm"}
    by_default, by_vllm = (found[engine]["rows"][-1]["ratio"] for engine in (None, "vllm"))
    assert by_vllm < by_default
    assert "Rows are by curves, the nearest of this device, engine and such weights: llama" in found[None]["source"]


def test_people_get_a_table_and_its_source_and_a_picture_if_they_ask_for_one(tmp_path):
    result = run("--out", tmp_path / "curve.svg")
    assert "times one row" in result.stdout
    assert "What it stands on is measured: " in result.stdout
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rows", "0"), "--rows '0': write sizes of 1..1024, such as 1,2,4,8"),
        (("--rows", ""), "--rows '': write sizes of 1..1024, such as 1,2,4,8"),
        (("--device", "rtx9090"), "no device is called 'rtx9090'; did you mean rtx5090 or rtx4090"),
        (("--device", "m4-max,rtx4090"), "--device m4-max,rtx4090: one device at a time"),
        (("--target", "llama-9"), "no model shape is called 'llama-9'; did you mean llama-"),
    ],
)
def test_what_is_wrong_is_named_with_the_choices(words, told):
    result = run(*words, exit_code=2)
    assert told in result.said
