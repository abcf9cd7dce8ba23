import shlex
import shutil
from dataclasses import replace

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Profile, save_profile
from mirrorsd.cli.option_values import models_of
from mirrorsd.cli.options import DEFAULT_TARGET
from sim.acceptance.replay import Replay
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.mirrorsd.cli.interrupt import interrupted
from tests.runtime import plain
from tests.tiny_models import EOS

PROMPTS = ("w5 w17 w3 w44 w8", "w9 w9 w4", "w60 w2 w33 w12")
ON_TORCH = ("--dtype", "float32", "--device", "cpu")
"""Graphs take longer to compile than all that is recorded here."""


@pytest.fixture
def words(tiny_folders):
    models = ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)
    return ("record", *models, *ON_TORCH, "--max-new-tokens", 10, "--max-window", 3, "--threads", 1)


def test_the_record_holds_the_targets_own_texts(words, prompt_file, tiny_folders, tmp_path):
    out = tmp_path / "deep" / "record.npz"
    result = json_of(*words, "--prompts", prompt_file(*PROMPTS), "--out", out)
    record = AcceptanceRecord.load(out)
    for prompt, text in zip(record.prompts, PROMPTS, strict=True):
        ids = [int(word[1:]) for word in text.split()]
        assert prompt.text.tolist() == plain.continue_text(tiny_folders.decoder, ids, 10, eos=(EOS,))
        assert len(prompt.margins) == len(prompt.text)
        assert (prompt.margins >= 0).all()
    assert (result["num_prompts"], result["num_texts"], result["exit_layers"], result["max_window"]) == (
        3,
        3,
        [2, 3],
        3,
    )
    assert result["num_tokens"] == sum(len(prompt.text) for prompt in record.prompts)
    assert 0 < result["token_acceptance"] <= 1
    assert [result[name] for name in ("temperature", "seed", "max_new_tokens")] == [0.0, 0, 10]


def test_a_record_has_the_name_by_which_others_know_it(words, tmp_path):
    """`run --replay` and `plan --acceptance` take any other file for rates."""
    out = tmp_path / "record-1"
    said = error_of(*words, "--out", out)
    assert f"--out {out}: a record's name ends in .npz, such as {out}.npz" in said


def test_a_record_leads_to_the_search_or_to_the_calibration_that_it_needs(words, prompt_file, tmp_path):
    prompts, out = prompt_file(PROMPTS[0]), tmp_path / "my record.npz"
    profile = tmp_path / "profile.yaml"
    shown = call(*words, "--prompts", prompts, "--out", out)
    assert f"Wrote {out}: 1 prompt, " in " ".join(shown.stdout.split())
    [said] = [line for line in shown.stderr.splitlines() if "Next" in line]
    assert said.startswith(f"Next: mirrorsd calibrate {shlex.join(map(str, words[1:7]))} ")
    assert " --device cpu " in said
    reach = f"--prompts {prompts} --max-new-tokens 10 --max-window 3"
    assert said.endswith(f" {reach} --quick --out {profile}")
    save_profile(profile_of(AcceptanceRecord.load(out)), profile)
    said = call(*words, "--prompts", prompts, "--out", out).stderr
    assert said.endswith(f"Next: mirrorsd search --profile {profile} --record '{out}' --out {tmp_path / 'best.yaml'}\n")


@pytest.mark.parametrize("name", ["mine.yaml", "mine-profile.yaml"])
def test_a_record_finds_the_profile_that_led_to_it_by_its_name(words, prompt_file, tmp_path, name):
    words = (*words, "--prompts", prompt_file(PROMPTS[0]), "--out", tmp_path / "mine.npz")
    call(*words, exit_code=0)
    save_profile(profile_of(AcceptanceRecord.load(tmp_path / "mine.npz")), tmp_path / name)
    assert f"Next: mirrorsd search --profile {tmp_path / name} " in call(*words).stderr


def profile_of(record, **other):
    """A made-up profile of the recorded models, on lanes like the recorded ones."""
    names = {"target": record.target, "drafter": record.drafter, "dtype": record.dtype}
    lane = LaneProfile(name="own", device=record.backend if ":" in record.backend else "cpu", dispatch_s=0)
    return Profile(host={}, num_layers=4, lanes=(lane,), **(names | other))


@pytest.mark.parametrize("other", [{"target": "another"}, {"dtype": "int8"}, None])
def test_a_profile_of_other_models_is_neither_searched_nor_written_over(words, prompt_file, tmp_path, other):
    out, profile, own = (tmp_path / name for name in ("record.npz", "profile.yaml", "record-profile.yaml"))
    words = (*words, "--prompts", prompt_file(PROMPTS[0]), "--out", out)
    profile.touch()
    call(*words)
    record = AcceptanceRecord.load(out)
    if other is not None:
        save_profile(profile_of(record, **other), profile)
    assert call(*words).stderr.endswith(f" --quick --out {own}\n")
    save_profile(profile_of(record), own)
    assert f"Next: mirrorsd search --profile {own} " in call(*words).stderr


def test_the_exits_recorded_are_named_where_the_schedule_runs(words, prompt_file, tiny_folders, tmp_path):
    out = tmp_path / "record.npz"
    assert call(*words, "--prompts", prompt_file(PROMPTS[0]), "--out", out).exit_code == 0
    record = AcceptanceRecord.load(out)
    assert models_of(record).exits == str(tiny_folders.exits)
    assert models_of(record, "others").exits == "others"
    shipped = replace(record, target=DEFAULT_TARGET, exits="smollm2-135m-exits")
    assert models_of(shipped).words == ("--dtype", "float32")


def test_exits_can_be_chosen_and_recorded_for_wider_budgets(words, prompt_file, tmp_path):
    out = tmp_path / "record.npz"
    more = ("--prompts", prompt_file(PROMPTS[0]), "--out", out, "--exit-layer", 1, "--exit-layer", 3)
    assert call(*words, *more, "--max-exit-top-k", 30).exit_code == 0
    record = AcceptanceRecord.load(out)
    assert record.exit_layers == (1, 3)
    assert {ids.shape[1] for ids in record.prompts[0].exits.values()} == {31}


@pytest.mark.parametrize(("limit", "size"), [("MAX_BYTES", "arrays"), ("MAX_HEADER_BYTES", "header")])
def test_texts_without_room_and_a_seed_without_use_are_told(words, prompt_file, tmp_path, monkeypatch, limit, size):
    more = ("--prompts", prompt_file(*PROMPTS), "--out", tmp_path / "record.npz")
    call(*words, *more, exit_code=0)
    whole = AcceptanceRecord.load(tmp_path / "record.npz").file_size
    monkeypatch.setattr(f"decoding.record.{limit}", getattr(whole, size) - 1)
    room = "a record is limited to 512 MiB, and to 4 MiB of names. Record the others separately."
    told = f"{len(PROMPTS) - 1} of {len(PROMPTS)} texts were recorded: {room}"
    seeded = call(*words, *more, "--seed", 7, exit_code=0).said
    assert told in seeded
    assert "--seed is not used: decoding at temperature 0 is greedy" in seeded


def test_sampled_texts_are_recorded_by_seed(words, prompt_file, tmp_path):
    out = tmp_path / "record.npz"
    more = ("--prompts", prompt_file(*PROMPTS), "--out", out, "--temperature", 1.0, "--texts", 2, "--seed", 7)
    found = call(*words, *more)
    assert f"Wrote {out}: {len(PROMPTS)} prompts, {2 * len(PROMPTS)} texts, " in found.shown
    assert " tokens sampled at temperature 1." in found.shown
    record = AcceptanceRecord.load(out)
    assert (record.temperature, record.seed, len(record.prompts)) == (1.0, 7, 2 * len(PROMPTS))
    assert record.prompt_numbers == tuple(place // 2 for place in range(2 * len(PROMPTS)))
    assert [prompt.name.split(", ")[-1] for prompt in record.prompts] == ["seed 7", "seed 8"] * len(PROMPTS)


def test_a_sampled_text_is_written_again_by_a_run_of_its_seed(
    words, prompt_file, schedule_file, tiny_folders, tmp_path, in_threads
):
    """Whatever its prompt is called there."""
    out = tmp_path / "record.npz"
    call(*words, "--prompts", prompt_file(*PROMPTS), "--out", out, "--temperature", 1.5, "--texts", 2, "--seed", 7)
    recorded = [prompt.text.tolist() for prompt in AcceptanceRecord.load(out).prompts]
    plain_run = ("run", "--schedule", schedule_file(method="autoregressive"), "--target", tiny_folders.target)
    drawn = ("--dtype", "float32", "--max-new-tokens", 10, "--temperature", 1.5)
    asked = [("--prompt", prompt, "--seed", seed) for prompt in PROMPTS for seed in (7, 8)]
    written = [json_of(*plain_run, *drawn, *one)["prompts"][0]["token_ids"] for one in asked]
    assert written == recorded
    assert "greater than or equal to 0" in error_of(*words, "--out", out, "--seed", -5)


def test_trees_of_the_heads_that_are_named_are_recorded(words, prompt_file, head_folders, tmp_path):
    out = tmp_path / "record.npz"
    heads = f"{head_folders['medusa']}, {head_folders['eagle']},{head_folders['streams']},prompt-lookup"
    more = ("--prompts", prompt_file(*PROMPTS), "--out", out, "--heads", heads, "--tree", "2x4", "--tree", "3x2")
    result = json_of(*words, *more, "--device", "cpu")
    record = AcceptanceRecord.load(out)
    medusa, eagle, streams = (str(head_folders[name]) for name in ("medusa", "eagle", "streams"))
    expected = [
        ("medusa", medusa, 2, 0),
        ("eagle2", eagle, 2, 4),
        ("eagle2", eagle, 3, 2),
        ("speculative_streaming", streams, 2, 0),
    ]
    assert [(tree.method, tree.drafter, tree.depth, tree.top_k) for tree in record.trees] == expected
    keys = ("method", "drafter", "depth", "top_k")
    assert [tuple(tree[key] for key in keys) for tree in result["trees"]] == expected
    settings = [{"num_speculative_tokens": 3}]
    settings += [
        {"num_speculative_tokens": tree.depth, "tree_top_k": tree.top_k, "tree_size": 64} for tree in record.trees
    ]
    for told, own in zip(result["chains"] + result["trees"], settings, strict=True):
        lanes = {"target_lane": "cpu"} | ({} if told["name"].startswith(streams) else {"draft_lane": "cpu"})
        schedule = Schedule(method=told["method"], drafter=told.get("drafter", told["name"]), **own, **lanes)
        committed = Replay(record).walk(schedule, None).num_committed
        assert told["mean_acceptance_length"] == pytest.approx(committed.mean())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--heads", "nowhere"), "'nowhere' is not a shipped drafter"),
        (("--tree", "5"), "--tree 5: expected depth x top-k, such as 5x8"),
        (("--tree", "99x4"), "--tree 99x4: expected depth x top-k"),
        (("--tree", "5" * 5000 + "x4"), "expected depth x top-k"),
        (("--temperature", "1e308"), "temperature is 1e+308: it must be 0, or 0.001 to 100"),
        (("--dtype", "int8", "--device", "cpu"), "'cpu' does not compute with int8; it does with bfloat16, float32"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(words, prompt_file, tmp_path, more, message):
    out = tmp_path / "out" / "record.npz"
    assert message in error_of(*words, "--prompts", prompt_file(PROMPTS[0]), "--out", out, *more)
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


def test_penalties_that_the_targets_folder_asks_for_are_told(words, prompt_file, tiny_folders, tmp_path):
    target = shutil.copytree(tiny_folders.target, tmp_path / "target")
    (target / "generation_config.json").write_text('{"no_repeat_ngram_size": 3}')
    more = ("--target", target, "--prompts", prompt_file(PROMPTS[0]), "--out", tmp_path / "record.npz")
    (warning,) = json_of(*words, *more)["warnings"]
    assert warning.startswith(f"{target / 'generation_config.json'} asks for no_repeat_ngram_size 3, which is not")
    assert "no_repeat_ngram_size 3" in " ".join(call(*words, *more).stderr.split())


def test_an_interrupted_recording_goes_on_behind_what_it_had(words, prompt_file, tmp_path):
    out, prompts = tmp_path / "record.npz", prompt_file(*PROMPTS * 200)
    more = ("--prompts", prompts, "--out", out)
    saved_soon = "from calibrate.recording import recorder; recorder._SAVED_EVERY_S = 0.2"
    when = lambda: list(tmp_path.glob(".record.npz.*.npz"))  # noqa: E731
    status, stdout, stderr = interrupted(words + more, when=when, first=saved_soon)
    assert (status, stdout) == (130, "")
    assert f"Interrupted. Finished prompts, if any, are kept next to {out}" in stderr
    assert not out.exists()
    (partial,) = tmp_path.glob(".record.npz.*.npz")
    kept = AcceptanceRecord.load(partial).prompts[:3]
    assert kept

    few = prompt_file(*PROMPTS, name="few")
    assert call(*words, "--prompts", few, "--out", tmp_path / "few.npz").exit_code == 0
    whole = AcceptanceRecord.load(tmp_path / "few.npz").prompts
    assert [prompt.text.tolist() for prompt in kept] == [prompt.text.tolist() for prompt in whole[: len(kept)]]
