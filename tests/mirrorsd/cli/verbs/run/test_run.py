"""The verb with a tiny model; float32, so that every method writes the same text. Most lanes are threads."""

import json
import shutil

import pytest

from decoding.errors import ConfigError
from decoding.schedule import load_schedule
from mirrorsd.text_engine import Decoding, generate
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.mirrorsd.cli.verbs.run.asked import METHODS, PROMPTS, SETTINGS, TREES, rows_of
from tests.runtime import plain
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import EOS, tiny_target


@pytest.mark.parametrize("method", METHODS)
def test_a_file_of_prompts_becomes_a_file_of_rows(run, method, schedule_file, prompt_file, tiny_folders, tmp_path):
    schedule = schedule_file(**METHODS[method])
    out = tmp_path / "out" / "rows.jsonl"
    result = run("--schedule", schedule, "--prompts", prompt_file(*PROMPTS), "--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    rows = rows_of(out)
    assert [row["prompt_id"] for row in rows] == ["p0", "p1", "p2"]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        ids = [int(word[1:]) for word in prompt.split()]
        assert row["token_ids"] == plain.continue_text(tiny_folders.decoder, ids, 24, eos=(EOS,))
        assert row["text"] == " ".join(f"w{token}" for token in row["token_ids"] if token != EOS)
        assert (len(row["accept_lengths"]), sum(row["accept_lengths"])) == (row["num_rounds"], len(row["token_ids"]))
        assert min(row["prefill_s"], row["decode_s"]) > 0
        assert row["settings"]["dtype"] == "float32"


def test_a_head_can_be_named_in_place_of_the_schedules(in_threads, head_folders, schedule_file, tiny_folders):
    schedule = schedule_file(**TREES["medusa"], drafter="nobody")
    words = ("run", "--target", tiny_folders.target, *SETTINGS, "--prompt", PROMPTS[0], "--schedule")
    named = json_of(*words, schedule, "--drafter", head_folders["medusa"])
    assert named["schedule"]["drafter"] == str(head_folders["medusa"])
    told = "needs its own kind of head, but only these are known:"
    assert f"method medusa {told}" in error_of(*words, schedule, "--drafter", head_folders["streams"])
    missing = schedule_file(**TREES["eagle"], drafter=None)
    assert f"method eagle2 {told} prompt-lookup: name one" in error_of(*words, missing)


def test_a_prompt_that_does_not_fit_is_named_before_any_is_answered(run, schedule_file, prompt_file, tmp_path):
    out = tmp_path / "rows.jsonl"
    prompts = prompt_file(PROMPTS[0], " ".join(["w5"] * 500))
    result = run("--schedule", schedule_file(method="autoregressive"), "--prompts", prompts, "--out", out)
    assert (result.exit_code, result.stdout, out.exists()) == (2, "", False)
    assert "prompt p1: 500 tokens of prompt, 24 new ones and windows need" in result.stderr.replace("\n", " ")


def test_the_text_streams_to_stdout(in_threads, tiny_folders, schedule_file):
    words = ("run", "--target", tiny_folders.target, "--dtype", "float32", "--max-new-tokens", "5")
    schedule = schedule_file(method="autoregressive")
    result = call(*words, "--schedule", schedule, "--prompt", PROMPTS[0])
    row = json_of(*words, "--schedule", schedule, "--prompt", PROMPTS[0])["prompts"][0]
    assert result.stdout == row["text"] + "\n"
    assert "5 tokens in 5 rounds" in result.stderr


def test_the_first_prompt_says_that_models_are_loaded_and_a_finished_file_loads_none(
    run, schedule_file, prompt_file, tmp_path
):
    words = ("--schedule", schedule_file(method="autoregressive"), "--prompts", prompt_file(*PROMPTS[:2]))
    told = [run(*words, "--out", tmp_path / "rows.jsonl").stderr for _ in range(2)]
    assert "1/2 p0, once the models are loaded\n2/2 p1\n" in told[0]
    assert "loaded" not in told[1]


def test_penalties_that_the_targets_folder_asks_for_are_told_once(in_threads, tiny_folders, schedule_file, tmp_path):
    target = shutil.copytree(tiny_folders.target, tmp_path / "target")
    (target / "generation_config.json").write_text('{"repetition_penalty": 1.1, "top_p": 0.8}')
    words = (
        "run",
        "--target",
        target,
        *SETTINGS,
        "--schedule",
        schedule_file(method="autoregressive", verification="match"),
    )
    told = f"{target / 'generation_config.json'} asks for repetition_penalty 1.1, which is not applied"
    result = call(*words, "--prompt", PROMPTS[0])
    assert result.stderr.count(told) == 1
    (warning,) = json_of(*words, "--prompt", PROMPTS[0])["warnings"]
    assert warning.startswith(told)
    (warning,) = json_of(*words, "--prompt", PROMPTS[0], "--temperature", 0.7)["warnings"]
    assert "repetition_penalty 1.1, top_p 0.8" in warning


def test_models_that_the_schedule_does_not_run_are_told(run, words, schedule_file):
    """The words name a drafter and exits for every schedule."""
    told = {
        "--drafter is not used: method autoregressive drafts nothing": ["autoregressive"],
        "--exits is not used: the schedule takes no early exit": ["autoregressive", "speculative"],
    }
    for method, fields in METHODS.items():
        given = ("--schedule", schedule_file(**fields), "--prompt", PROMPTS[0])
        warnings = json.loads(run(*given, "--json").stdout)["warnings"]
        assert warnings == [one for one, methods in told.items() if method in methods]
        assert json.loads(run(*given, "--json", "--seed", 7).stdout)["warnings"] == [*warnings, SEED_UNUSED]
        assert [one in run(*given).said for one in told] == [method in methods for methods in told.values()]


SEED_UNUSED = "--seed is not used: decoding at temperature 0 is greedy"


def test_a_seed_gives_the_same_sample_again_and_another_seed_another(run, schedule_file):
    schedule = schedule_file(method="speculative", verification="match")
    words = ("--schedule", schedule, "--prompt", PROMPTS[0], "--temperature", "1.0", "--json")
    results = [json.loads(run(*words, "--seed", seed).stdout) for seed in (1, 1, 2)]
    texts = [result["prompts"][0]["token_ids"] for result in results]
    assert texts[0] == texts[1] != texts[2]
    assert [[one[name] for name in ("temperature", "seed", "max_new_tokens")] for one in results] == [
        [1.0, seed, 24] for seed in (1, 1, 2)
    ]


def test_a_prompt_that_is_asked_again_is_answered_by_the_next_seed(run, schedule_file, prompt_file, tmp_path):
    schedule = schedule_file(method="speculative", verification="match")
    twice = prompt_file(PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[0])
    sampled = ("--schedule", schedule, "--temperature", 1, "--seed", 5)
    rows = json.loads(run(*sampled, "--prompts", twice, "--json").stdout)["prompts"]
    assert [row["seed"] for row in rows] == [5, 5, 6, 7]
    assert len({tuple(row["token_ids"]) for row in rows}) == 4
    sampled = (*sampled[:-1], 7, "--prompt", PROMPTS[0], "--json")
    assert json.loads(run(*sampled).stdout)["prompts"][0]["token_ids"] == rows[3]["token_ids"]
    greedy = json.loads(run("--schedule", schedule_file(), "--prompts", twice, "--json").stdout)["prompts"]
    assert greedy[0]["token_ids"] == greedy[2]["token_ids"] == greedy[3]["token_ids"]


@pytest.mark.parametrize(
    ("verification", "temperature", "told"),
    [
        ("match", 1e-6, "temperature is 1e-06: it must be 0, or 0.001 to 100"),
        ("greedy", 0.8, "temperature is 0.8: it must be 0 with verification greedy"),
    ],
)
def test_a_temperature_that_cannot_be_is_refused_before_models_are_looked_for(
    schedule_file, tmp_path, in_threads, verification, temperature, told
):
    """They may have to be fetched."""
    path, nowhere = schedule_file(verification=verification), tmp_path / "nowhere"
    asked = ("--schedule", path, "--prompt", PROMPTS[0], "--temperature", temperature)
    assert told in error_of("run", *asked, "--target", nowhere)
    with pytest.raises(ConfigError, match=told):
        generate(PROMPTS[0], load_schedule(path), target=nowhere, decoding=Decoding(temperature=temperature))


@pytest.mark.parametrize(("temperature", "label"), [(0.8, "the lossy rule typical"), (0, None)])
def test_texts_of_a_lossy_rule_are_labelled_where_anything_is_drawn(
    words, schedule_file, head_folders, in_threads, temperature, label
):
    schedule = schedule_file(**TREES["medusa"], verification="typical")
    asked = ("--prompt", PROMPTS[0], "--drafter", head_folders["medusa"], "--temperature", temperature)
    found = json_of(*words, "--schedule", schedule, *asked)
    lossy = "verification typical is lossy: these texts do not have the target's distribution"
    assert (lossy in found["warnings"]) == (label is not None)
    assert found.get("label") == found["prompts"][0].get("label") == label


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "give exactly one of --prompt TEXT, --prompts FILE"),
        (("--prompt", "w1", "--prompts", "x.jsonl"), "give exactly one of --prompt TEXT, --prompts FILE"),
        (("--prompt", " "), "--prompt is empty"),
        (("--prompt", "w1", "--max-new-tokens", "100000"), "positions; the target has 512"),
        (("--prompt", "w1", "--drafter", "EXITS"), "has speculators_model_type 'mirrorsd_exits'"),
        (("--prompt", "w1", "--schedule", "ELSEWHERE"), "this machine has no lane 'gpu7', only cpu0"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_message(run, schedule_file, tiny_folders, tmp_path, more, message):
    (tmp_path / "elsewhere.yaml").write_text("method: autoregressive\ntarget_lane: gpu7\n")
    known = {"EXITS": tiny_folders.exits, "ELSEWHERE": tmp_path / "elsewhere.yaml"}
    result = run("--schedule", schedule_file(), *(known.get(word, word) for word in more))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr


def test_what_a_lane_refuses_is_said_as_it_is(schedule_file, tiny_folders, tmp_path, forked_lanes):
    """The error is raised in the lane's process; neither the lane nor the run is blamed for it."""
    other = save_target(tiny_target(seed=9, max_position=512), tmp_path / "other")
    (other / "tokenizer.json").write_bytes((tiny_folders.target / "tokenizer.json").read_bytes())
    words = ("run", "--target", other, *SETTINGS, "--schedule", schedule_file(), "--prompt", "w1")
    result = call(*words, "--drafter", tiny_folders.drafter)
    assert (result.exit_code, result.stdout) == (2, "")
    error = result.stderr.replace("\n", " ").partition("Error: ")[2]
    assert error.startswith(f"{tiny_folders.drafter}: was trained for")
    assert "lane" not in error
