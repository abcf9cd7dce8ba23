"""`mirrorsd curve`: the price of rows as a table, a picture and JSON."""

import pytest

from mirrorsd.cli.verbs.curve import EXAMPLE
from tests.mirrorsd.cli.calls import call, error_of, json_of

ASKED = EXAMPLE.split()[1:]


def test_scripts_get_what_was_promised():
    found = json_of(*ASKED, "--rows", "1,2,4,8", "--context", "4096")
    assert {"target", "device", "engine", "weights", "context", "source", "rows"} <= set(found)
    assert (found["device"], found["weights"], found["context"]) == ("rtx4090", "bf16", 4096)
    assert [one["rows"] for one in found["rows"]] == [1, 2, 4, 8]
    assert all(one["low"] < one["time_s"] < one["high"] for one in found["rows"])


def test_rows_are_sorted_and_each_is_there_once():
    assert [one["rows"] for one in json_of(*ASKED, "--rows", "8,1,4,1")["rows"]] == [1, 4, 8]


def test_an_engine_has_its_own_price_of_rows_and_the_default_is_said():
    by_default, by_vllm = (json_of(*ASKED, "--weights", "int4", *more) for more in ((), ("--engine", "vllm")))
    assert (by_default["engine"], by_vllm["engine"]) == ("llama.cpp", "vllm")
    assert by_vllm["rows"][-1]["ratio"] < by_default["rows"][-1]["ratio"]
    assert (
        "Costs of rows are from measured curves, some of this device, engine and such weights; mainly: llama"
        in by_default["source"]
    )


@pytest.mark.parametrize(("engine", "is_told"), [("tensorrt-llm", True), ("vllm", False)])
def test_an_engine_whose_times_are_another_ones_is_told_so(engine, is_told):
    shown = call("curve", "--target", "qwen3-8b", "--device", "h100", "--engine", engine, exit_code=0).stdout
    assert (f"Times are vLLM's: {engine} was not measured." in shown) == is_told


def test_people_get_a_table_and_its_source_and_a_picture_if_they_ask_for_one(tmp_path):
    shown = call(*ASKED, "--out", tmp_path / "curve.svg", exit_code=0).stdout
    assert "times one row" in shown
    assert "Numbers measured: " in shown
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


def test_a_context_is_typed_as_in_a_plan():
    assert [json_of(*ASKED, "--rows", "1", "--context", text)["context"] for text in ("0", "8k")] == [0, 8192]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--context", "much"), "'much' is not a number of tokens (0 or more, such as 8192 or 8k)"),
        (("--rows", "0"), "--rows '0': write numbers from 1 to 1024, such as 1,2,4,8"),
        (("--rows", ""), "--rows '': write numbers from 1 to 1024, such as 1,2,4,8"),
        (("--device", "m4-max,rtx4090"), "--device m4-max,rtx4090: one device at a time"),
        (("--device", "rtx3090 12gb"), "needs 16.1 GB with its cache, and NVIDIA GeForce RTX 3090 has 12.0 GB"),
        (("--device", "epyc-9654", "--engine", "llama.cpp"), "--engine llama.cpp: engines are for GPUs, but epyc-9654"),
        (("--device", "2xrtx3090"), "--device 2xrtx3090: a curve is of one rtx3090"),
    ],
)
def test_what_is_wrong_is_named_with_the_choices(words, told):
    assert told in error_of(*ASKED, *words)


@pytest.mark.parametrize(("weights", "is_told"), [("bf16", False), ("int8", False), ("q4_k_m", True)])
def test_weights_that_a_device_does_not_run_are_priced_and_named_as_in_a_plan(weights, is_told):
    asked = (*ASKED, "--device", "m4-ane", "--target", "qwen3-0.6b", "--weights", weights)
    told = "Data sheet: only weights in fp16 or int8; predicted as if it ran q4_k_m."
    assert (told in call(*asked, exit_code=0).shown) is is_told
    assert json_of(*asked)["warnings"] == [told] * is_told


@pytest.mark.parametrize(("device", "is_told"), [("rtx3080", False), ("RTX 3080 20GB", True), ("M4 Max 36GB", False)])
def test_a_card_with_another_memory_than_its_sheets_is_told_to_have_the_sheets_bandwidth(device, is_told):
    asked, told = (*ASKED, "--device", device, "--weights", "q4_k_m"), "(10 GB) with 20 GB is taken to read as fast as"
    assert (told in " ".join(call(*asked, exit_code=0).shown.split())) is is_told
    assert [told in one for one in json_of(*asked)["warnings"]] == [True] * is_told


def test_a_device_of_ones_own_has_a_curve(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{name: Mine, kind: gpu, memory_bytes_per_s: 800 GB/s, bf16_flops: 90 TFLOPS}")
    found = json_of(*ASKED, "--device", str(path))
    assert found["device"] == "mine"
    assert found["rows"][0]["low"] < 16.1e9 / 0.8e12 / 0.75 < found["rows"][0]["high"], "what weights take to read"
