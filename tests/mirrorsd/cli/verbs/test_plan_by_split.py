"""`mirrorsd plan` of targets whose layers are split over cards and a CPU: placements like any other."""

import json
import re

from tests.mirrorsd.cli.calls import call
from tests.mirrorsd.cli.verbs.test_plan import LAKE, found, run

PC = ("--target", "gpt-oss-120b", "--draft", "prompt-lookup", "--weights", "mxfp4_moe")
"""Of 63 GB, in a memory of 64 and a card of 24."""


def test_a_split_is_told_of_each_machine_and_each_draft_as_any_placement():
    shown = run("--platform", "m4-max,rtx4060", "--weights", "q4_k_m").stdout
    first, second = found("--platform", "rtx4060,M4 16GB", "--weights", "q4_k_m")["platforms"]
    (draft,) = found("--platform", "rtx4060", "--weights", "q4_k_m")["drafts"]
    place = r"target on gpu\(3\d\) \+ cpu\(\d\), draft on gpu"
    assert re.search(rf"^rtx4060 +q4_k_m +synchronous, 2 drafted +{place} ", shown, re.MULTILINE)
    assert (first["platform"], second["placement"]["target"]) == ("rtx4060", "gpu")
    assert first["placement"] == draft["placement"]
    assert re.fullmatch(r"gpu\(3\d\) \+ cpu\(\d\)", first["placement"]["target"])
    assert first["tpot_s"] < second["tpot_s"]
    assert first["pays"] in ("yes", "no", "cannot_tell")
    assert first["speedup"]["low"] < first["speedup"]["value"] < first["speedup"]["high"]


def test_a_target_that_no_memory_holds_is_answered_by_its_split():
    asked = ("--target", "gpt-oss-120b", "--draft", "prompt-lookup", "--weights", "mxfp4")
    alone = run(*asked, "--platform", "rtx3090").stdout
    assert re.search(r"36 of 36 layers on .* and the experts of 25 on A desktop CPU", alone)
    assert "llama.cpp: llama-server -m TARGET.gguf -ngl 37 --n-cpu-moe 25\n" in alone
    answer = found(*asked, "--platform", "rtx3060,rtx3090,lunar-lake")
    first, second, last = answer["platforms"]
    assert (first["platform"], second["platform"], last["platform"]) == ("rtx3090", "rtx3060", "lunar-lake")
    assert first["placement"]["target"] == "gpu(36) + cpu(25 experts)"
    assert set(last) == {"platform", "refused"}
    shown = run(*asked, "--platform", "rtx3060,rtx3090").stdout
    assert re.search(r"rtx3060 +mxfp4 +plain +target on gpu\(36\) \+ cpu\(32 experts\) ", shown)


def test_an_answer_by_split_tells_what_every_answer_tells():
    asked = ("--target", "gpt-oss-120b", "--platform", "rtx3090")
    shown = run(*asked, "--draft", "eagle3,prompt-lookup", "--explain").stdout
    for told in (
        "assumed acceptance",
        "A desktop CPU with two channels of DDR5-5600",
        "Assumed: a trained gpt-oss-120b EAGLE-3 head.",
        "of 36 layers on",
        "breaks even at",
        "Drafts, each with its assumed acceptance",
        "cpu.growth_per_row",
    ):
        assert told in shown


def test_json_of_an_answer_by_split_has_the_keys_of_every_plan():
    split = found("--target", "gpt-oss-120b", "--draft", "eagle3", "--platform", "rtx3090", "--set", "cpu.power_w=50")
    assert set(found(*LAKE)) == set(split)
    empty = {name for name, value in split.items() if value in (None, [])}
    assert empty <= {"what_if", "left_out", "drafts_left_out", "tornado"}
    question = split["question"]
    assert (question["target"], question["draft"], question["platform"]) == ("gpt-oss-120b", "eagle3", "rtx3090")
    assert (question["context"], question["changes"]) == (64, {"cpu.power_w": "50"})
    assert split["confirmed_by_events"]["agrees"]


def test_a_split_has_pages_files_batches_and_sweeps(tmp_path):
    page, *files = (tmp_path / name for name in ("page.html", "schedule.yaml", "profile.yaml", "acceptance.yaml"))
    written = ("--schedule-out", str(files[0]), "--profile-out", str(files[1]), "--acceptance-out", str(files[2]))
    more = ("--batch", "1,4", "--sweep", "cpu.memory_bytes_per_s=60:120:3", "--out", str(page), *written)
    shown = run(*PC, "--platform", "rtx3090", *more).stdout
    lane = "gpu(36) + cpu(24 experts)"
    assert f"plain decoding on {lane}" in shown, "over the sweep"
    assert "Batches: predicted tokens per second" in shown
    assert lane in page.read_text()
    assert '<td class="n">120 GB/s<td>' in page.read_text()
    assert lane in files[0].read_text()
    simulated = call(
        *("simulate", "--schedule", str(files[0]), "--profile", str(files[1]), "--acceptance", str(files[2])),
        exit_code=0,
    )
    assert "ms" in simulated.stdout
    again = call("plan", "--profile", str(files[1]), *PC, exit_code=0)
    assert lane in again.stdout, "its cards and its CPU are lanes of that profile"


def test_what_changed_numbers_change_of_a_split_is_told():
    changed = ("--platform", "rtx3090", "--set", "cpu.memory_bytes_per_s=200GB/s")
    told = r"What if cpu\.memory_bytes_per_s=200GB/s: plain decoding 1\d\.\d ms per token instead of [23]\d\.\d ms; .*"
    assert re.search(told, run(*PC, *changed).stdout)
    assert re.fullmatch(told, found(*PC, *changed)["what_if"])
    held = run("--platform", "rtx3090", *PC, "--set", "gpu.memory_bytes=96GB").stdout
    assert re.search(
        r"What if gpu\.memory_bytes=96GB: plain decoding \d\.\d+ ms per token instead of [23]\d\.\d ms", held
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
    targets = {row["placement"]["target"] for row in answer["ranking"]}
    assert any(re.fullmatch(r"rtx3090\(\d+\) \+ openvino:CPU\(\d+\)", one) for one in targets), "not one core of it"
    assert any(one.startswith("The machine was calibrated with smollm2-135m") for one in answer["warnings"])
