"""`mirrorsd plan` in words, in JSON and as a page; what stands in them is tested with `planner/platform_plan`."""

import json
import re
from functools import cache

import pytest

from planner.published.published_gains import published_like
from tests.mirrorsd.cli.calls import call, error_of

ASKED = ("plan", "--target", "qwen3-14b", "--draft", "qwen3-0.6b", "--context", "64", "--new-tokens", "32")
LAKE = ("--platform", "lunar-lake")


@cache
def run(*words):
    return call(*ASKED, *words, exit_code=0)


PAIR_ON_CPU = (
    *("--platform", "cpu-2core", "--target", "smollm2-135m-instruct"),
    *("--draft", "smollm2-135m-draft4", "--weights", "bf16"),
)


def found(*words):
    return json.loads(run(*words, "--json").stdout)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    result = run(*LAKE, "--json", str(folder / "plan.json"), "--out", str(folder / "plan.html"))
    return result.stdout, json.loads((folder / "plan.json").read_text()), (folder / "plan.html").read_text()


def test_the_answer_is_printed_in_words_with_the_best_of_every_place(planned):
    shown, _, page = planned
    assert "Yes, speculation pays here" in shown
    answer, table, turns = shown.strip().split("\n\n")
    *_, advice, doubt, command = answer.splitlines()
    assert doubt == published_like(1.5)
    assert advice.startswith('Next: use "synchronous')
    assert re.fullmatch(r'openvino\.genai: openvino_genai\.LLMPipeline\("TARGET", .*_tokens=\d\)', command), "to paste"
    assert re.search(r"^ +synchronous, \d drafted +gpu +npu +\d", table, re.MULTILINE)
    assert "acceptance.rate" in turns
    assert len(shown.splitlines()) <= 25
    assert page.startswith("<!doctype html>")


def test_the_json_holds_what_scripts_are_promised(planned):
    _, found, _ = planned
    assert {"ranking", "verdict", "pays", "break_even", "search", "assumptions"} <= set(found)
    assert set(found["search"]) == {"num_schedules", "num_prompts", "seconds"}
    promised = {"schedule", "method", "placement", "tpot_s", "tpot_s_low", "tpot_s_high", "speedup", "bound"}
    promised |= {"energy_j_per_token", "usd_per_million_tokens", "over_best", "ttft_s", "memory_bytes"}
    assert all(promised <= set(row) for row in found["ranking"])
    assert {"field", "low", "high", "effect_low", "effect_high", "flips_at"} <= set(found["tornado"][0])
    assert {row["name"] for row in found["pareto"]} <= {row["name"] for row in found["ranking"]}
    assert found["search"]["num_schedules"] == len(found["ranking"])
    assert all({"field", "value", "status", "source"} <= set(one) for one in found["assumptions"])
    assert found["pays"] in ("yes", "no", "cannot_tell")
    low, at, high = (found["break_even"][name] for name in ("low", "acceptance", "high"))
    assert (low or 0) <= at <= high


def test_the_json_says_what_was_asked_and_what_was_taken_where_nothing_was_said():
    assert found(*LAKE, "--set", "npu.power_w=20")["question"] == {
        "target": "qwen3-14b",
        "draft": "qwen3-0.6b",
        "platform": "lunar-lake",
        "profile": None,
        "add": [],
        "engine": None,
        "acceptance": None,
        "changes": {"npu.power_w": "20"},
        "weights": "int4",
        "draft_weights": "int4",
        "cache_bits": 16,
        "context": 64,
        "new_tokens": 32,
    }


def test_names_in_json_are_those_of_the_ranking():
    told = found(*PAIR_ON_CPU, "--batch", "1,4", "--measured", "benchmarks/results/demos/1/demo.json")
    ranked = {row["name"]: row["schedule"] for row in told["ranking"]}
    assert len(ranked) == len(told["ranking"])
    for one in (*told["platforms"], *told["drafts"]):
        assert ranked[one["name"]] == one["schedule"]
    for one in told["batches"]["sizes"]:
        assert ranked[one["name"]] == one["drafting"]["schedule"]
    rows = [one for one in told["measured"] if one["planned_schedule"] in ranked.values()]
    assert rows
    assert all(ranked[one["name"]] == one["planned_schedule"] for one in rows)
    assert told["winner"] == told["platforms"][0]["name"]


def test_a_speedup_says_of_which_speculation_where_plain_decoding_is_recommended():
    told = found("--platform", "h100-sxm", "--acceptance", "0.05", "--sweep", "acceptance.rate=0.05,0.9")
    plain, drafting = (
        next(row for row in told["ranking"] if (row["method"] == "autoregressive") == is_plain)
        for is_plain in (True, False)
    )
    for one in (told, *told["platforms"], *told["drafts"]):
        assert one["speedup"]["value"] == pytest.approx(plain["tpot_s"] / drafting["tpot_s"])
        assert (one["speedup"]["of"], one["speedup"]["over"]) == (drafting["name"], plain["name"])
    assert told["platforms"][0]["name"] == plain["name"]
    low, high = told["sweep"]["cells"]
    assert (low["best"], low["speculation"]) == ("plain decoding on gpu", "both on gpu")
    assert low["speedup"] < 1
    assert high["speculation"] == high["best"]


def test_a_sweep_of_two_numbers_is_a_grid_and_says_who_leads(tmp_path):
    swept = ("--sweep", "npu.memory_bytes_per_s=20,80", "--sweep", "npu.dispatch_s=1ms,5ms")
    told = run(*LAKE, *swept, "--out", str(tmp_path / "page.html")).stdout
    page = (tmp_path / "page.html").read_text()
    assert page.count('<td class="n">20 GB/s<td class="n">') == page.count('<td class="n">5 ms<td>') == 2
    assert '<th class="n">with npu</tr>' in page
    grid = told[told.index("Speed-up over plain decoding with npu; across: npu.dispatch_s") :].splitlines()
    assert grid[1].split() == ["npu.memory_bytes_per_s", "1", "ms", "5", "ms"]
    assert re.fullmatch(r"20 GB/s +0\.\d\d× +0\.\d\d×", grid[2])
    assert grid[4].startswith("* the fastest of all ways; fastest: both on gpu")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("memory.bytes_per_s=+50%", r"plain decoding \S+ ms per token instead of \S+ ms; speculation, "),
        ("npu.memory_bytes_per_s=+10%", r"speculation, target on gpu, draft on npu \S+ ms per token instead of "),
        ("memory.memory_bytes=1e13", "no placement changes its predicted time"),
    ],
)
def test_what_a_changed_number_brings_is_said_and_that_it_brings_nothing_too(setting, said, tmp_path):
    shown = run(*LAKE, "--set", setting, "--json", str(tmp_path / "plan.json")).shown
    told = json.loads((tmp_path / "plan.json").read_text())["what_if"]
    assert re.search(f"^What if {re.escape(setting)}: {said}", told)
    assert told in shown


def test_a_plan_that_is_possible_only_with_what_was_set_is_said():
    words = (*LAKE, "--target", "llama-3.1-70b", "--draft", "llama-3.2-1b", "--set", "memory.memory_bytes=1e11")
    told = found(*words)["what_if"]
    assert told.startswith("Without --set there is no answer to compare with: ")
    assert "fits nowhere" in told


def test_a_record_of_another_pair_is_replayed_on_purpose_only_and_named():
    words = (*ASKED[:5], *LAKE, "--acceptance", "tests/golden/record.npz")
    told = json.loads(call(*words, "--replayed-acceptance", "--json", exit_code=0).stdout)
    assert told["assumptions"][0]["source"].startswith("record of ")
    assert told["assumptions"][0]["status"] == "guessed"
    assert "acceptance recorded for another pair (smollm2-135m-instruct with smollm2-135m-draft4)" in told["verdict"]
    said = error_of(*words)
    assert "smollm2-135m-instruct with smollm2-135m-draft4" in said
    assert "--replayed-acceptance" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*LAKE, "--set", "npu.memory"], "PART.FIELD=VALUE"),
        ([*LAKE, "--context", "0"], "'0' is not a number of tokens (1 or more, such as 8192 or 8k)"),
        ([*LAKE, "--set", "memory.bytes_per_s=1e4"], "hours for 1 row"),
        ([*LAKE, "--set", "npu.power_w=20", "--set", "npu.power_w=30"], "--set npu.power_w: is given more than once"),
        ([*LAKE, "--sweep", "gpu.memory_efficiency=0.5,3"], "--sweep gpu.memory_efficiency: 3 is not possible"),
        ([*LAKE, "--acceptance", "tests/golden/record.npz"], "leave out lengths (--context, --new-tokens)"),
        (
            [*LAKE, "--acceptance", "tests/golden/record.npz", "--acceptance-out", "x"],
            "--acceptance-out x: the acceptance was recorded",
        ),
        ([*LAKE, "--target", ""], "no model shape is called ''; there are "),
        ([*LAKE, "--draft", ""], "no model shape is called ''; there are "),
        (["--platform", ""], "no platform is called ''; there are "),
        ([*LAKE, "--weights", ""], "no weight format is called ''; there are "),
        ([*LAKE, "--add", ""], "no device is called ''; there are "),
        ([*LAKE, "--add", "rtx4090,nonsense"], "no device is called 'nonsense'; there are "),
        ([], "no machine is given: give --platform (a card such as rtx4090 or 2xrtx3090"),
        ([*LAKE, "--profile", "mine.yaml"], "--platform lunar-lake and --profile mine.yaml are different machines"),
        ([*LAKE, "--measured", "run.json", "--draft", "a,b"], "--measured needs a single machine and a single draft"),
        *(([*LAKE, "--batch", sizes], "write numbers from 1 to 256, such as") for sizes in ("1,257", "9" * 5000)),
    ],
)
def test_what_is_wrong_is_said(words, message):
    assert message in error_of(*ASKED, *words)


def test_no_question_is_answered_where_a_name_of_another_is_wrong(monkeypatch):
    monkeypatch.setattr("planner.platform_plan.choices.plan_platform", lambda question: pytest.fail("was planned"))
    assert "'moon-lake'" in error_of(*ASKED, "--platform", "lunar-lake,rtx3090,moon-lake")
    assert "'qwen3-0.7b'" in error_of(*ASKED, *LAKE, "--draft", "qwen3-0.6b,qwen3-0.7b")


def test_a_faster_device_that_cannot_hold_the_target_is_told_before_the_speed_of_a_slower_one():
    why = found("--platform", "rtx4090")["verdict"].splitlines()[1]
    assert why.startswith(
        "Why: NVIDIA GeForce RTX 4090 cannot hold Qwen3-14B in bf16 (28.0 GB needed, 23.0 GB usable; --weights int8"
    )
    several = run("--platform", "rtx4090,h200", "--weights", "bf16")
    assert "rtx4090: NVIDIA GeForce RTX 4090 cannot hold" in several.stdout
    assert "h200: " not in several.stdout
    for fitting in (("--weights", "int8"), ("--platform", "2xrtx4090")):
        assert "cannot hold" not in run("--platform", "rtx4090", *fitting).stdout


def test_a_command_that_loses_to_plain_decoding_says_so():
    """No engine has a back end for this accelerator, so what one runs is on the CPU."""
    *_, command = run("--platform", "tt-p150", "--weights", "int8").stdout.strip().split("\n\n")[0].splitlines()
    assert re.match(r"llama\.cpp, 0\.\d+× plain decoding: llama-server -m ", command)


def test_the_command_that_only_this_program_can_run_is_not_announced_by_its_own_name():
    answer = run(*PAIR_ON_CPU).stdout.strip().split("\n\n")[0].splitlines()
    assert answer[-1].startswith(("To run it on that machine: mirrorsd demo ", "To run it on that machine, 0."))


def test_machines_are_compared_in_the_same_weights():
    both, slower = ("--platform", "rtx4090,lunar-lake"), ("--set", "gpu.memory_efficiency=0.5")
    compared, alone = found(*both, *slower), found("--platform", "rtx4090", "--weights", "int4", *slower)
    assert [one["weights"] for one in compared["platforms"]] == ["int4", "int4"]
    assert compared["platforms"][0] == alone["platforms"][0]
    assert compared["what_if"] == alone["what_if"]
    assert "All are compared in int4" in run(*both).stdout
    assert "All are compared" not in run(*both, "--weights", "int4").stdout


def test_batches_are_answered_in_words_in_json_and_on_the_page(tmp_path):
    page, file = tmp_path / "plan.html", tmp_path / "plan.json"
    shown = run(*LAKE, "--batch", "1, 8,64", "--out", str(page), "--json", str(file)).shown
    assert "Best draft length by batch size: " in shown
    assert "<h2>Batches" in page.read_text()
    told = json.loads(file.read_text())["batches"]
    assert [one["batch_size"] for one in told["sizes"]] == [1, 8, 64]
    assert all({"best_window", "placement", "drafting", "plain", "speedup"} <= set(one) for one in told["sizes"])
    assert all(one["plain"]["runs_on"][0]["engine"] == "openvino.genai" for one in told["sizes"])
    assert shown.count("runs on") == 2, "of schedules, and of batches"
    assert told["switch_off_at"] in (8, 64, None)
    assert told["verdict"] in shown


@pytest.mark.parametrize(("device", "named"), [("lunar-lake", True), ("lunar-lake-npu4", False), ("rtx4090", False)])
def test_of_a_chip_that_is_added_the_device_that_was_taken_is_said(device, named):
    result = run("--platform", "rtx3090", "--weights", "q4_k_m", "--add", device)
    said = " ".join(result.stderr.split())
    assert ("Added lunar-lake-gpu; its chip also has lunar-lake-cpu, lunar-lake-npu4" in said) is named


def test_what_is_assumed_of_an_added_device_is_in_json_too():
    asked = "--platform", "rtx3090", "--weights", "q4_k_m", "--add", "rtx3060"
    said = "Assumed: rtx3060 is connected by PCI Express"
    assumed = [one for one in found(*asked)["warnings"] if one.startswith(said)]
    assert len(assumed) == " ".join(run(*asked).output.split()).count("Assumed: rtx3060 is connected by") == 1


def test_a_cpu_that_takes_the_assumed_ones_place_is_joined_by_no_link():
    result = run("--platform", "rtx4070", "--weights", "q4_k_m", "--add", "ryzen-5800x")
    assert "is connected by" not in result.stderr


def test_a_draft_that_cannot_draft_for_the_target_is_left_out_of_several():
    several = "--platform", "rtx4090", "--draft", "mtp,prompt-lookup,eagle3"
    answer = found(*several)
    assert {one["draft"] for one in answer["drafts"]} == {"prompt-lookup", "eagle3"}
    assert [one["draft"] for one in answer["drafts_left_out"]] == ["mtp"]
    assert "Left out: draft 'mtp': Qwen3-14B has no MTP layers" in " ".join(run(*several).stderr.split())
    assert "has no MTP layers" in error_of(*ASKED, "--platform", "rtx4090", "--draft", "mtp")


ADDED = ("--add", "rtx4090, rtx3090"), ("--add", "rtx4090", "--add", "rtx3090")


def test_added_devices_may_be_listed_with_commas():
    listed, repeated = (run(*LAKE, *given).stdout for given in ADDED)
    assert listed == repeated
