import json
import re
from functools import cache

import pytest
from typer.testing import CliRunner

from mirrorsd.cli.app import app

ASKED = ["plan", "--target", "qwen3-14b", "--draft", "qwen3-0.6b", "--context", "64", "--new-tokens", "32"]


@cache
def run(*words, exit_code=0):
    result = CliRunner().invoke(app, [*ASKED, *words])
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    paths = {"json": folder / "plan.json", "page": folder / "plan.html"}
    result = run("--platform", "lunar-lake", "--json", str(paths["json"]), "--out", str(paths["page"]))
    return result, json.loads(paths["json"].read_text()), paths["page"].read_text()


def test_the_answer_is_printed_in_words_with_the_best_of_every_place(planned):
    result, _, page = planned
    assert "Yes, speculation pays here" in result.stdout
    answer, table, turns = result.stdout.strip().split("\n\n")
    *_, advice, command = answer.splitlines()
    assert advice.startswith('Next: use "synchronous')
    assert re.fullmatch(r"llama\.cpp: llama-server -m TARGET\.gguf .*--spec-draft-n-max \d", command), "to paste"
    assert re.search(r"^ +synchronous, \d drafted +gpu +npu +\d", table, re.MULTILINE)
    assert "acceptance.rate" in turns
    assert len(result.stdout.splitlines()) <= 25
    assert page.startswith("<!doctype html>")


def test_the_json_holds_what_scripts_are_promised(planned):
    _, found, _ = planned
    assert {"ranking", "verdict", "pays", "break_even", "search", "assumptions"} <= set(found)
    assert set(found["search"]) == {"num_schedules", "num_prompts", "seconds"}
    promised = {"schedule", "method", "placement", "tpot_s", "tpot_s_low", "tpot_s_high", "speedup", "bound"}
    assert {"field", "low", "high", "effect_low", "effect_high", "flips_at"} <= set(found["tornado"][0])
    assert {row["name"] for row in found["pareto"]} <= {row["name"] for row in found["ranking"]}
    promised |= {"energy_j_per_token", "usd_per_million_tokens", "over_best", "ttft_s", "memory_bytes"}
    assert all(promised <= set(row) for row in found["ranking"])
    assert found["search"]["num_schedules"] == len(found["ranking"])
    assert all({"field", "value", "status", "source"} <= set(one) for one in found["assumptions"])
    assert found["pays"] in ("yes", "no", "cannot_tell")
    assert found["break_even"]["low"] <= found["break_even"]["acceptance"] <= found["break_even"]["high"]


def test_a_sweep_of_two_numbers_is_a_grid_and_says_who_leads():
    told = run(
        "--platform", "lunar-lake", "--sweep", "npu.memory_bytes_per_s=20,80", "--sweep", "npu.dispatch_s=1ms,5ms"
    )
    grid = told.stdout[told.stdout.index("Times plain decoding with npu; across: npu.dispatch_s") :].splitlines()
    assert grid[1].split() == ["npu.memory_bytes_per_s", "1", "ms", "5", "ms"]
    assert re.fullmatch(r"20 GB/s +0\.\d\d× +0\.\d\d×", grid[2])
    assert grid[4].startswith("* leads; what leads: both on gpu")


def fastest_s(*words):
    found = json.loads(run("--platform", "lunar-lake", *words, "--json").stdout)
    return found["ranking"][0]["tpot_s"], found


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("memory.bytes_per_s=+50%", r"plain decoding \S+ ms per token instead of \S+ ms; speculation, "),
        ("npu.memory_bytes_per_s=+10%", r"speculation, target on gpu, draft on npu \S+ ms per token instead of "),
        ("memory.memory_bytes=1e13", "no place is predicted to be any faster or slower"),
    ],
)
def test_what_a_changed_number_brings_is_said_and_that_it_brings_nothing_too(setting, said):
    found = json.loads(run("--platform", "lunar-lake", "--set", setting, "--json").stdout)["what_if"]
    assert re.search(f"^What if {re.escape(setting)}: {said}", found)
    assert found in " ".join(run("--platform", "lunar-lake", "--set", setting).stdout.split())


def test_the_issues_own_what_if_moves_the_npu_and_nothing_else():
    """More bandwidth for the NPU alone."""

    def times(*words):
        rows = json.loads(run("--platform", "lunar-lake", *words, "--json").stdout)["ranking"]
        return {json.dumps(row["schedule"]): (row["placement"]["draft"], row["tpot_s"]) for row in rows}

    here, there = times(), times("--set", "npu.memory_bytes_per_s=+10%")
    drafts = {here[key][0] for key in here if there[key][1] != here[key][1]}
    assert drafts == {"npu"}


def test_a_plan_that_is_possible_only_with_what_was_set_is_said():
    words = ("--platform", "lunar-lake", "--target", "llama-3.1-70b", "--draft", "llama-3.2-1b")
    found = json.loads(run(*words, "--set", "memory.memory_bytes=1e11", "--json").stdout)["what_if"]
    assert found.startswith("Without what was set nothing can be said: ")
    assert "fits nowhere" in found


def test_rates_are_taken_as_given():
    _, rare = fastest_s("--acceptance", "0.3")
    _, often = fastest_s("--acceptance", "0.9,0.8,0.8,0.8,0.8,0.8,0.8")
    assert often["ranking"][0]["speedup"] > rare["ranking"][0]["speedup"]
    assert rare["assumptions"][0] == rare["assumptions"][0] | {"value": 0.3, "source": "given by the user"}


def test_exits_are_recommended_only_where_they_are_said_to_be_trained():
    _, bare = fastest_s()
    _, trained = fastest_s("--trained-exits")
    assert any(row["needs_training"] for row in bare["ranking"])
    assert not any(row["needs_training"] for row in trained["ranking"])
    assert all(row["needs_training"] == row["name"].endswith("(exit to be trained)") for row in bare["ranking"])


def test_a_record_of_another_pair_is_replayed_on_purpose_only_and_named():
    words = ("--platform", "lunar-lake", "--acceptance", "tests/golden/record.npz")
    found = json.loads(run(*words, "--replayed-acceptance", "--json").stdout)
    assert found["assumptions"][0]["source"].startswith("record of ")
    assert found["assumptions"][0]["status"] == "guessed"
    assert "acceptance recorded for another pair (smollm2-135m-instruct with smollm2-135m-draft4)" in found["verdict"]
    said = " ".join(run(*words, exit_code=2).stderr.split())
    assert "smollm2-135m-instruct with smollm2-135m-draft4" in said
    assert "--replayed-acceptance" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--platform", "moon-lake"], "no platform is called 'moon-lake'"),
        (["--platform", "lunar-lake,moon-lake"], "no platform is called 'moon-lake'"),
        (["--platform", "lunar-lake", "--set", "npu.memory"], "PART.FIELD=VALUE"),
        (["--platform", "lunar-lake", "--acceptance", "often"], "neither a rate"),
        (["--platform", "lunar-lake", "--acceptance", "80"], "rates are from 0 to 1, such as 0.8 for 80 %, not 80"),
        (["--platform", "lunar-lake", "--acceptance", "x" * 300], "cannot be a path"),
        (["--platform", "x" * 300], "no platform is called"),
        (["--platform", "lunar-lake", "--draft", "llama-3.2-1b"], "cannot draft for Qwen3-14B"),
        (["--platform", "lunar-lake", "--context", "100k"], "a prompt of 102,400 tokens and 32 new ones"),
        (["--platform", "lunar-lake", "--context", "0"], "'0' is no number of tokens, 1 or more, such as 8192 or 8k"),
        (["--platform", "lunar-lake", "--new-tokens", "1000000"], "Qwen3-14B has 40,960"),
        (["--platform", "lunar-lake", "--set", "memory.bytes_per_s=1e4"], "hours for 1 row"),
        (["--platform", "lunar-lake", "--target", "gpt-5"], "no model shape is called 'gpt-5'"),
        (
            ["--platform", "m4-max", "--engine", "torch"],
            "no engine is called 'torch'; there are ik_llama.cpp, llama.cpp, ",
        ),
    ],
)
def test_what_is_wrong_is_said(words, message):
    result = run(*words, exit_code=2)
    assert message in result.said


def test_no_question_is_answered_where_a_name_of_another_is_wrong(monkeypatch):
    monkeypatch.setattr("planner.platform_plan.choices.plan_platform", lambda question: pytest.fail("was planned"))
    run("--platform", "lunar-lake,rtx3090,moon-lake", exit_code=2)
    run("--platform", "lunar-lake", "--draft", "qwen3-0.6b,qwen3-0.7b", exit_code=2)


def test_a_faster_device_that_cannot_hold_the_target_is_told_before_the_speed_of_a_slower_one():
    why = json.loads(run("--platform", "rtx4090", "--json").stdout)["verdict"].splitlines()[1]
    assert why.startswith(
        "Why: NVIDIA GeForce RTX 4090 cannot hold Qwen3-14B in bf16 (29.6 GB needed, 23.0 GB usable; --weights int8"
    )
    several = run("--platform", "rtx4090,h200", "--weights", "bf16")
    assert "rtx4090: NVIDIA GeForce RTX 4090 cannot hold" in several.stdout
    assert "h200: " not in several.stdout
    for fitting in (("--weights", "int8"), ("--platform", "2xrtx4090")):
        assert "cannot hold" not in run("--platform", "rtx4090", *fitting).stdout


def test_batches_are_answered_in_words_in_json_and_on_the_page(tmp_path):
    page = tmp_path / "plan.html"
    words = ("--platform", "lunar-lake", "--batch", "1, 8,64", "--out", str(page))
    shown = " ".join(run(*words).stdout.split())
    assert "The best window by batch size: " in shown
    assert "Several sequences at once" in page.read_text()
    found = json.loads(run("--platform", "lunar-lake", "--batch", "1,8,64", "--json").stdout)["batches"]
    assert [one["batch_size"] for one in found["sizes"]] == [1, 8, 64]
    assert all({"best_window", "placement", "drafting", "plain", "speedup"} <= set(one) for one in found["sizes"])
    assert found["switch_off_at"] in (8, 64, None)
    assert found["verdict"] in shown


@pytest.mark.parametrize("sizes", ["0", "1,65", "two", "", "9" * 5000])
def test_batch_sizes_that_are_none_are_refused(sizes):
    result = run("--platform", "lunar-lake", "--batch", sizes, exit_code=2)
    assert "write sizes of 1..64, such as 1,2,4,8" in result.said


def growth_of_the_gpu(*words):
    found = json.loads(run(*words, "--json").stdout)
    (one,) = (one for one in found["assumptions"] if one["field"] == "gpu.growth_per_row")
    return one


def test_with_an_engine_named_rows_cost_what_was_measured_with_it_and_the_answer_moves():
    by_default, by_mlx = (growth_of_the_gpu("--platform", "m4-max", *words) for words in ((), ("--engine", "mlx")))
    assert "llama.cpp metal" in by_default["source"]
    assert "mlx metal" in by_mlx["source"]
    assert by_default["value"] != by_mlx["value"]


def test_what_is_set_wins_over_the_engine():
    assert (
        growth_of_the_gpu("--platform", "m4-max", "--engine", "mlx", "--set", "gpu.growth_per_row=0.2")["value"] == 0.2
    )
