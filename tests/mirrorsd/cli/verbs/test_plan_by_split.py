"""`mirrorsd plan` of targets whose layers are split over cards and a CPU: the answer by split, and what it tells."""

import json
import re

import pytest

from tests.mirrorsd.cli.calls import call, error_of
from tests.mirrorsd.cli.verbs.test_plan import ASKED, LAKE, found, run

PC = ("--target", "gpt-oss-120b", "--draft", "prompt-lookup", "--weights", "mxfp4_moe")


def test_a_split_of_layers_is_told_of_each_machine_and_each_draft():
    shown = run("--platform", "m4-max,rtx4060", "--weights", "q4_k_m").stdout
    first, second = found("--platform", "rtx4060,M4 16GB", "--weights", "q4_k_m")["platforms"]
    (draft,) = found("--platform", "rtx4060", "--weights", "q4_k_m")["drafts"]
    assert re.search(r"rtx4060 +q4_k_m +2 drafted +3\d of 40 layers on gpu and the rest on cpu +\S +2\d\.\d ", shown)
    assert (first["platform"], second["partial_offload"]) == ("rtx4060", None)
    assert first["partial_offload"] == draft["partial_offload"]
    split = first["partial_offload"]
    assert split["tpot_s"] < second["tpot_s"] < first["without_offload"]["tpot_s"]
    for one in (first, draft):
        assert (one["tpot_s"], one["name"], one["schedule"]) == (split["tpot_s"], "2 drafted", None)
        assert one["speedup"]["value"] == pytest.approx(split["plain_tpot_s"] / split["tpot_s"])
    assert (first["plain_tpot_s"], first["pays"], first["ttft_s"]) == (split["plain_tpot_s"], None, None)
    assert first["without_offload"]["pays"] in ("yes", "no", "cannot_tell")
    assert "without_offload" not in second


def test_a_target_that_no_memory_holds_is_answered_by_its_split():
    asked = ("--target", "gpt-oss-120b", "--draft", "prompt-lookup", "--weights", "mxfp4")
    alone = run(*asked, "--platform", "rtx3090").stdout
    assert re.search(r"Next: split the target: .* experts of 25 on cpu, 30\.\d tokens/s, plain \(0\.\d+×", alone)
    assert "llama.cpp: llama-server -m TARGET.gguf -ngl 37 --n-cpu-moe 25\n" in alone
    answer = found(*asked, "--platform", "rtx3060,rtx3090,lunar-lake")
    first, second, last = answer["platforms"]
    assert (first["platform"], second["platform"], last["platform"]) == ("rtx3090", "rtx3060", "lunar-lake")
    assert (first["partial_offload"], "partial_offload" in last) == (answer["partial_offload"], False)
    assert answer["partial_offload"]["in_words"].startswith("36 of 36 layers on gpu and the experts of 25 on cpu, ")
    shown = run(*asked, "--platform", "rtx3060,rtx3090").stdout
    assert re.search(r"rtx3060 +mxfp4 +plain +36 of 36 layers on gpu and the experts of 32 on cpu ", shown)
    for more in (("--batch", "1,2"), ("--measured", "runs.json")):
        refused = error_of(*ASKED, *asked, "--platform", "rtx3090", *more)
        assert "pages, files, batches, sweeps and measured runs are not of a split: " in refused


def test_an_answer_by_split_tells_what_every_answer_tells():
    asked = ("--target", "gpt-oss-120b", "--platform", "rtx3090")
    shown = run(*asked, "--draft", "eagle3,prompt-lookup", "--explain").stdout
    for told, times in {
        "Cannot tell whether speculation pays here: a split of layers has no interval": 1,
        "assumed acceptance, 70 %.": 1,
        "A desktop CPU with two channels of DDR5-5600": 1,
        "Assumed: a trained gpt-oss-120b EAGLE-3 head.": 1,
        "Acceptance of drafted tokens: 70 % (": 1,
        ": gpu has to hold 6": 1,
        "gpu: gpu": 0,
        "would fit on cpu": 1,
        "would fit (llama.cpp's": 0,
        "With eagle3: ": 0,
        "With prompt-lookup: ": 1,
    }.items():
        assert (told, shown.count(told)) == (told, times)
    assert "Acceptance of drafted tokens" not in run(*asked, "--draft", "eagle3,prompt-lookup").stdout


def test_json_of_an_answer_by_split_has_the_keys_of_every_plan():
    split = found("--target", "gpt-oss-120b", "--draft", "eagle3", "--platform", "rtx3090", "--set", "cpu.power_w=50")
    assert set(found(*LAKE)) <= set(split)
    empty = {name for name, value in split.items() if value in (None, [])}
    assert empty >= {"ranking", "winner", "speedup"}
    assert not empty & {"question", "verdict", "warnings", "explanation", "pays", "assumptions", "partial_offload"}
    question = split["question"]
    assert (question["target"], question["draft"], question["platform"]) == ("gpt-oss-120b", "eagle3", "rtx3090")
    assert (question["context"], question["changes"]) == (64, {"cpu.power_w": "50"})


def test_numbers_beside_which_a_split_of_layers_is_faster_say_that_they_are_without():
    swept = "--batch", "1", "--sweep", "gpu.memory_bytes_per_s=200:300:2"
    split, whole = (run("--platform", one, "--weights", "q4_k_m", *swept).stdout for one in ("rtx4060", "rtx4090"))
    said = [
        "acceptance, no layers split.",
        "Next: split the layers, which is faster than all of the table: ",
        "the answer, no layers split",
        "Over these values, no layers split",
        "all sequences together, no layers split",
        "Left out: layers that are split, which is faster for one",
    ]
    assert [text for text in said if text not in split] == []
    assert "; try" not in split, "the next step is the split alone"
    assert "split" not in whole


def test_a_machine_that_splits_is_compared_where_more_is_asked_for_than_a_split_has(tmp_path):
    shown = run(*PC, "--platform", "rtx3090,radeon-890m", "--batch", "1,2", "--out", str(tmp_path / "page.html")).stdout
    assert re.search(r"^rtx3090 .* experts of 24 on cpu ", shown, re.MULTILINE)
    told = "The fastest of the machines is rtx3090 with a split, which has no pages, files, batches, sweeps "
    told += "and measured runs; the fastest without one is radeon-890m."
    assert told in shown
    assert "Best draft length by batch size: 1 at 1 and 1 at 2" in shown
    assert told in (tmp_path / "page.html").read_text()
    answer = found(*PC, "--platform", "rtx3090,radeon-890m", "--batch", "1")
    assert answer["question"]["platform"] == "radeon-890m"
    assert told in answer["warnings"]
    assert found(*PC, "--platform", "rtx3090,radeon-890m")["question"]["platform"] == "rtx3090"
    assert "The fastest of the machines is rtx3090:" in run(*PC, "--platform", "rtx3090,radeon-890m").stdout


def test_what_changed_numbers_change_of_a_split_is_told():
    changed = ("--platform", "rtx3090", "--set", "cpu.memory_bytes_per_s=200GB/s")
    told = r"What if cpu\.memory_bytes_per_s=200GB/s: layers split 1\d\.\d ms per token instead of [23]\d\.\d ms\."
    assert re.search(told, run(*PC, *changed).stdout)
    assert re.fullmatch(told, found(*PC, *changed)["what_if"])
    held = run("--platform", "rtx3090", *PC, "--set", "gpu.memory_bytes=96GB").stdout
    assert re.search(
        r"What if gpu\.memory_bytes=96GB: the fastest \d\.\d+ ms per token instead of [23]\d\.\d ms\.", held
    )
    assert found(*PC, "--platform", "rtx3090")["what_if"] is None


def test_a_split_on_a_calibrated_machine_uses_the_fastest_cpu_and_tells_what_is_assumed():
    words = (
        "plan",
        "--profile",
        "benchmarks/results/demos/1/profile.yaml",
        "--add",
        "rtx3090",
        "--target",
        "qwen3-32b",
        "--weights",
        "q8_0",
    )
    answer = json.loads(call(*words, "--draft", "prompt-lookup", "--json", exit_code=0).stdout)
    assert answer["partial_offload"]["cpu"] == "openvino:CPU", "not one core of it, openvino:CPU@0"
    assert any(one.startswith("The machine was calibrated with smollm2-135m") for one in answer["warnings"])
