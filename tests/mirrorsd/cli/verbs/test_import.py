"""`mirrorsd import`: an engine's own benchmark as a table, as JSON, and as what to set in a plan."""

import json
import re

import pytest
import yaml

from decoding.schedule import load_schedule
from hwprofiles.model_shape import model_shape
from sim.acceptance.assumed import parse_acceptance
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.planner.imported.test_llama_bench import BATCHED, JSONL

PAGES = JSONL.parent
BENCHES = (PAGES / "llama-bench.jsonl", PAGES / "draft-bench.jsonl")
MODELS = ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b")
ROUND_S = 2 * 1.6e-3 + 10e-3 + 2e-3
"""A round drafts two rows one by one, verifies three, and reads them with the draft once more: by hand."""


def test_people_get_a_table_and_what_to_set_which_a_plan_takes():
    shown = call("import", JSONL).shown
    assert "llama 8B Q4_0 on NVIDIA GeForce RTX 3090" in shown
    (setting,) = re.findall(r"--set DEVICE(\.growth_per_row=[\d.]+),", shown)
    planned = json_of("plan", *MODELS, "--platform", "rtx4090+cpu", "--context", "64", "--set", f"gpu{setting}")
    (used,) = (one for one in planned["assumptions"] if one["field"] == "gpu.growth_per_row")
    assert used["value"] == float(setting.rpartition("=")[2])


def test_growth_by_sequences_with_a_cache_each_is_told_as_the_most_that_a_verification_has(tmp_path):
    path = tmp_path / "batched.md"
    path.write_text(BATCHED, encoding="utf-8")
    told = "In a verification it costs at most that, since its rows share one cache"
    shown = call("import", path, exit_code=0).shown
    assert told in shown
    assert "10.0 to 10.0" not in shown, "one number has no interval"
    assert told not in call("import", JSONL, exit_code=0).shown


def test_scripts_get_curves_in_the_form_of_curve():
    (found,) = json_of("import", JSONL)["curves"]
    assert {"target", "device", "engine", "context", "source", "rows"} <= set(found)
    assert found["rows"][0]["rows"] == 1
    assert all(one["low"] <= one["time_s"] <= one["high"] for one in found["rows"])
    assert found["growth_per_row"]["low"] <= found["growth_per_row"]["value"] <= found["growth_per_row"]["high"]


def test_pages_that_tell_acceptance_alone_are_shown_as_what_a_plan_takes():
    shown = call("import", PAGES / "llama-server-metrics.txt", exit_code=0).shown
    assert "2.25 tokens per verification. In a plan: --acceptance 0.75,0.667" in shown


def test_numbers_that_round_to_none_or_to_one_are_shown_so(tmp_path):
    """Every row twice as long as the one before, and no drafted token accepted."""
    rows = [json.loads(JSONL.read_text().splitlines()[0]) | {"n_prompt": rows, "n_gen": 0} for rows in (1, 2)]
    bench, serving = tmp_path / "bench.jsonl", tmp_path / "serving.jsonl"
    bench.write_text("\n".join(json.dumps(row | {"avg_ns": 1e6 * row["n_prompt"]}) for row in rows))
    serving.write_text(json.dumps({"completed": 4, "median_itl_ms": 9.0, "accept_length": 1.0}))
    shown = call("import", bench, serving, "--window", 2, exit_code=0).shown
    assert "costs 100 % of a pass over one row (100 to 100 %)" in shown
    assert "In a plan: --acceptance 0,0" in shown


@pytest.fixture
def engine(tmp_path):
    """A profile and an acceptance of an engine, as options that name their files."""
    profile, accepted = tmp_path / "engine.yaml", tmp_path / "accepted.yaml"
    outputs = ("--out", tmp_path / "curves.yaml", "--profile-out", profile, "--acceptance-out", accepted)
    call("import", *BENCHES, PAGES / "llama-server-metrics.txt", *outputs, exit_code=0)
    return "--profile", profile, "--acceptance", accepted


def test_an_engine_is_simulated_as_its_rounds_come_to(engine, tmp_path):
    schedule = {"method": "speculative", "target_lane": "engine", "draft_lane": "engine", "num_speculative_tokens": 2}
    (tmp_path / "two.yaml").write_text(json.dumps(schedule | {"drafter": "llama 1B Q4_0"}))
    found = json_of("simulate", *engine, "--schedule", tmp_path / "two.yaml")
    assert found["tpot_s"] * found["mean_acceptance_length"] == pytest.approx(ROUND_S, rel=0.02)
    assert found["mean_acceptance_length"] == pytest.approx(1 + 0.75 + 0.5, rel=0.02)
    shares = {name: time_s / sum(found["bottlenecks_s"].values()) for name, time_s in found["bottlenecks_s"].items()}
    assert shares["target_verify"] == pytest.approx(10e-3 / ROUND_S, rel=0.02)
    assert shares["draft"] == pytest.approx((2 * 1.6e-3 + 2e-3) / ROUND_S, rel=0.02)


def test_a_profile_has_no_target_of_one_engine_and_draft_of_another(tmp_path):
    told = error_of("import", BENCHES[1], PAGES / "vllm-serve-1.json", "--profile-out", tmp_path / "mixed.yaml")
    assert "a profile is of one engine, but the curves are of llama.cpp and vllm" in told


def test_a_search_finds_the_window_of_an_engine(engine, tmp_path):
    call("search", *engine, "--out", tmp_path / "best.yaml", exit_code=0)
    assert load_schedule(tmp_path / "best.yaml").num_speculative_tokens == 2


def test_a_search_tries_prompt_lookup_in_an_engine_that_was_timed_without_a_draft(tmp_path):
    engine, accepted = tmp_path / "engine.yaml", tmp_path / "accepted.yaml"
    call("import", BENCHES[0], "--profile-out", engine, exit_code=0)
    accepted.write_text("rates: [0.75, 0.667]\nlookups: [prompt-lookup]\ntexts: {num_tokens: 32}\n")
    found = json_of("search", "--profile", engine, "--acceptance", accepted)["candidates"]
    by_window = {one["schedule"].get("num_speculative_tokens", 0): one["predicted"]["tpot_s"] for one in found}
    assert by_window[0] == pytest.approx(8e-3, rel=0.01)
    assert by_window[2] * (1 + 0.75 + 0.5) == pytest.approx(10e-3, rel=0.03)


def test_curves_are_written_as_they_are_told_to_scripts(engine, tmp_path):
    written = yaml.safe_load((tmp_path / "curves.yaml").read_text())["curves"]
    assert written == json_of("import", *BENCHES)["curves"]


@pytest.mark.parametrize(
    ("page", "option", "told"),
    [
        ("llama-server-metrics.txt", "--out", "these files have no times"),
        ("llama-bench.jsonl", "--acceptance-out", "do not say how many drafted tokens were accepted"),
        ("vllm-metrics.txt", "--profile-out", "but the curves are of none"),
        ("nowhere.jsonl", "--out", "nowhere.jsonl"),
    ],
)
def test_what_is_not_there_is_not_written(tmp_path, page, option, told):
    output = tmp_path / "out.yaml"
    assert told in error_of("import", PAGES / page, option, output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("page", "options", "told"),
    [
        ("llama-bench.jsonl", ("--window", 4), ("--window: not used here; it is for metrics and answers",)),
        ("llama-bench.jsonl", ("--batch-size", 8), ("--batch-size: not used here; it is for vLLM's bench latency",)),
        ("vllm-metrics.txt", ("--new-tokens", 8), ("--new-tokens: not used here",)),
        ("llama-bench.jsonl", ("--draft", "llama-3.2-1b", "--weights", "q4_0"), ("--draft: ", "--weights: ")),
    ],
)
def test_an_option_that_no_file_needs_is_refused(page, options, told):
    found = error_of("import", PAGES / page, *options)
    assert all(one in found for one in told)


def test_several_runs_are_tasks_of_one_acceptance(tmp_path):
    output = tmp_path / "accepted.yaml"
    call("import", PAGES / "vllm-metrics.txt", PAGES / "speculation_profile.json", "--acceptance-out", output)
    assert {name: rates.rates for name, rates in parse_acceptance(str(output)).by_task.items()} == {
        "vllm-metrics.txt": (0.8, 0.625, 0.4),
        "speculation_profile.json": (0.8, 0.75, 0.5),
    }


@pytest.fixture
def imported(tmp_path):
    """The profile of both models' benchmarks."""
    path = tmp_path / "engine.yaml"
    call("import", *BENCHES, *MODELS, "--weights", "q4_0", "--profile-out", path, exit_code=0)
    return path


def test_a_plan_takes_an_engine_for_the_machine_that_it_is(imported):
    """Of the models that it timed passes cost what it said, by layers or not."""
    texts = ("--acceptance", "0.75,0.667", "--context", 64, "--new-tokens", 32)
    found = json_of("plan", *MODELS, "--profile", imported, *texts)["ranking"]
    by_window = {one["schedule"].get("num_speculative_tokens", 0): one["tpot_s"] for one in found}
    assert by_window[0] == pytest.approx(8e-3, rel=0.01)
    assert by_window[2] * (1 + 0.75 + 0.5) == pytest.approx(ROUND_S, rel=0.03)


def test_weights_of_a_profile_are_those_that_the_files_tell_and_the_command_says_so(tmp_path):
    told, given, untold = (tmp_path / f"{name}.yaml" for name in ("told", "given", "untold"))
    assert "Assumed" not in call("import", *BENCHES, *MODELS, "--weights", "q4_0", "--profile-out", given).said
    said = call("import", *BENCHES, *MODELS, "--profile-out", told, exit_code=0).said
    assert "Assumed: weights of Llama-3.1-8B are in q4_0;" in said
    assert told.read_text() == given.read_text()
    serve = ("import", PAGES / "vllm-serve-1.json", "--target", "gpt-oss-20b", "--profile-out", untold)
    assert "are in mxfp4; --weights" in call(*serve, exit_code=0).said


def test_a_draft_in_another_format_keeps_it_and_its_table(tmp_path):
    """A Q8_0 draft under a Q4_0 target is the usual choice."""
    other, path = tmp_path / "draft.jsonl", tmp_path / "engine.yaml"
    other.write_text(BENCHES[1].read_text().replace("llama 1B Q4_0", "llama 1B Q8_0"))
    said = call("import", BENCHES[0], other, *MODELS, "--profile-out", path, exit_code=0).said
    assert "Assumed: weights of Llama-3.1-8B are in q4_0, of Llama-3.2-1B in q8_0;" in said
    given = ("--weights", "q5_0", "--profile-out", tmp_path / "given.yaml")
    assert "q4_0, of Llama-3.2-1B in q8_0;" in call("import", BENCHES[0], other, *MODELS, *given).said
    texts = ("--acceptance", "0.75,0.667", "--context", 64, "--new-tokens", 32)
    asked, told = (
        json_of("plan", *MODELS, "--profile", path, *texts, *more) for more in ((), ("--draft-weights", "q8_0"))
    )
    assert [one["tpot_s"] for one in asked["ranking"]] == [one["tpot_s"] for one in told["ranking"]]
    by_window = {one["schedule"].get("num_speculative_tokens", 0): one["tpot_s"] for one in told["ranking"]}
    assert by_window[2] * (1 + 0.75 + 0.5) == pytest.approx(ROUND_S, rel=0.03)


def test_an_engine_that_tells_no_device_runs_on_a_gpu_and_is_named_in_commands(tmp_path):
    served, batched = tmp_path / "served.yaml", tmp_path / "batched.yaml"
    call("import", PAGES / "vllm-serve-1.json", *MODELS[:2], "--profile-out", served, exit_code=0)
    (tmp_path / "bench.jsonl").write_text(json.dumps({"pl": 1, "tg": 16, "pp": 64, "t_tg": 0.16}))
    call("import", tmp_path / "bench.jsonl", *MODELS[:2], "--profile-out", batched, exit_code=0)
    asked = ("--target", "llama-3.1-8b", "--draft", "prompt-lookup", "--context", 512, "--profile")
    rows = json_of("plan", *asked, served)["ranking"]
    assert {row["runs_on"][0]["engine"] for row in rows} == {"vllm"}
    rows = json_of("plan", *asked, batched, "--add", "rtx3060")["ranking"]
    commands = [one["options"] for row in rows for one in row["runs_on"] if row["schedule"]["target_lane"] == "engine"]
    assert commands
    assert not any("none" in command for command in commands)


def test_a_target_that_the_card_of_an_engine_cannot_hold_is_refused(imported):
    """The file names an RTX 3090, which has 24 GB."""
    told = error_of("plan", "--target", "llama-3.3-70b", "--draft", "prompt-lookup", "--profile", imported)
    assert "engine has to hold 4" in told
    assert "23.0 GB are usable" in told


def test_an_engine_on_a_card_is_no_cpu_beside_another_card(imported):
    asked = ("--profile", imported, "--add", "rtx4090", "--context", 64, "--new-tokens", 32)
    rows = json_of("plan", *MODELS, *asked)["ranking"]
    commands = [one["options"] for row in rows for one in row["runs_on"] if one["engine"] == "llama.cpp"]
    assert any("-devd RTX4090" in command for command in commands)
    assert not any("none" in command for command in commands)


def test_a_plan_for_other_models_reads_as_fast_as_the_engine_did(imported):
    """The lane reads what it was timed to read: half as much takes about half as long."""
    other = ("--target", "llama-3.2-3b", "--draft", "llama-3.2-1b", "--profile", imported, "--context", 64)
    plain = next(one for one in json_of("plan", *other)["ranking"] if one["schedule"]["method"] == "autoregressive")
    sizes = [model_shape(name).weight_bytes("q4_0") for name in ("llama-3.1-8b", "llama-3.2-3b")]
    assert plain["tpot_s"] == pytest.approx(8e-3 * sizes[1] / sizes[0], rel=0.25)


def test_no_plan_follows_from_the_times_of_models_that_nobody_named(engine):
    told = error_of("plan", *MODELS, *engine[:2])
    assert "llama 8B Q4_0 and llama 1B Q4_0" in told
    assert "--target, --draft, --weights" in told


def test_other_drafts_do_not_pay_for_what_the_timed_draft_reads(tmp_path, imported):
    """Of one target the same is told with and without a draft beside it: rows are verified, and no draft reads them."""
    alone = tmp_path / "alone.yaml"
    call("import", BENCHES[0], *MODELS[:2], "--weights", "q4_0", "--profile-out", alone, exit_code=0)
    asked = ("--target", "llama-3.1-8b", "--draft", "prompt-lookup", "--context", 64, "--new-tokens", 32)
    one, other = (json_of("plan", *asked, "--profile", profile)["ranking"] for profile in (alone, imported))
    assert [row["tpot_s"] for row in one] == pytest.approx([row["tpot_s"] for row in other])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((BENCHES[0], *MODELS), "llama 8B Q4_0 alone was timed: a benchmark of Llama-3.2-1B is needed too"),
        (("small", *MODELS[:2]), "qwen3 0.6B Q8_0 was timed, which is Qwen3-0.6B, and not Llama-3.1-8B"),
    ],
)
def test_times_of_another_model_are_not_those_of_the_target(tmp_path, asked, expected):
    small = tmp_path / "small.jsonl"
    small.write_text(BENCHES[0].read_text().replace("llama 8B Q4_0", "qwen3 0.6B Q8_0"))
    files = [small if one == "small" else one for one in asked]
    assert expected in error_of("import", *files, "--profile-out", tmp_path / "engine.yaml")
