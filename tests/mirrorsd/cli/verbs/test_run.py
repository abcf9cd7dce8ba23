"""The verb with a tiny model; float32, so that every method writes the same text. Most lanes are threads."""

import json
import shutil

import pytest

from decoding.errors import ConfigError, LaneError, MemoryFitError
from decoding.schedule import load_schedule
from decoding.trace import LaneEvent
from hwprofiles.host import computing_host
from mirrorsd.text_engine import Decoding, TextEngine, generate
from runtime.verification.rules import DRAWN_BY
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.mirrorsd.cli.interrupt import interrupted
from tests.runtime import plain
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import EOS, tiny_target

PROMPTS = ("w5 w17 w3 w44 w8", "w9 w9 w4", "w60 w2 w33 w12")
SETTINGS = ("--dtype", "float32", "--max-new-tokens", "24", "--quiet")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Other programs on the machine would be warned of."""
    for look in ("so_far", "lately"):
        monkeypatch.setattr(f"hwprofiles.other_use.OtherUse.{look}", lambda _self: None)


@pytest.fixture
def words(tiny_folders):
    models = ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)
    return ("run", *models, *SETTINGS)


@pytest.fixture
def run(words, in_threads):
    return lambda *more: call(*words, *more)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


METHODS = {
    "autoregressive": {"method": "autoregressive"},
    "speculative": {"method": "speculative"},
    "mirror": {"method": "mirror", "root_source": "exit", "exit_layer": 2, "exit_top_k": 4},
}


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


TREES = {
    "medusa": {"method": "medusa", "num_speculative_tokens": 2, "tree_size": 5},
    "eagle": {"method": "eagle2", "num_speculative_tokens": 3, "tree_size": 6, "tree_top_k": 3},
}


def test_a_head_can_be_named_in_place_of_the_schedules(in_threads, head_folders, schedule_file, tiny_folders):
    schedule = schedule_file(**TREES["medusa"], drafter="nobody")
    words = ("run", "--target", tiny_folders.target, *SETTINGS, "--prompt", PROMPTS[0], "--schedule")
    named = json_of(*words, schedule, "--drafter", head_folders["medusa"])
    assert named["schedule"]["drafter"] == str(head_folders["medusa"])
    told = "needs its own kind of head, and those at hand are"
    assert f"method medusa {told}" in error_of(*words, schedule, "--drafter", head_folders["streams"])
    missing = schedule_file(**TREES["eagle"], drafter=None)
    assert f"method eagle2 {told} prompt-lookup: name one" in error_of(*words, missing)


def test_an_interrupted_file_is_finished_and_a_finished_one_left_alone(run, schedule_file, prompt_file, tmp_path):
    out, prompts = tmp_path / "rows.jsonl", prompt_file(*PROMPTS)
    words = ("--schedule", schedule_file(method="autoregressive"), "--prompts", prompts, "--out", out)
    run(*words)
    whole = out.read_bytes()
    first = whole.split(b"\n")[0] + b"\n"
    out.write_bytes(whole[: len(first) + 40])
    result = run(*words)
    assert "has 1 row already; 2 prompts to go." in result.stderr
    assert out.read_bytes().startswith(first)
    assert [row["token_ids"] for row in rows_of(out)] == [json.loads(line)["token_ids"] for line in whole.splitlines()]

    finished = out.read_bytes()
    assert run(*words).exit_code == 0
    assert out.read_bytes() == finished


def test_what_happened_in_a_row_is_told_again_with_it_and_a_stopped_one_is_timed_again(
    run, schedule_file, prompt_file, tmp_path, monkeypatch
):
    texts, answer = [], TextEngine.answer
    troubles = [LaneEvent(0.1, "cpu0", "it hung"), LaneEvent(0.1, "cpu0", "mirrorsd was stopped", is_loss=False)]

    def troubled(*given, **named):
        made = answer(*given, **named)
        made.trace.events += troubles[len(texts) : len(texts) + 1]
        texts.append(made.text)
        return made

    monkeypatch.setattr(TextEngine, "answer", troubled)
    words = ("--schedule", schedule_file(method="autoregressive"), "--prompts", prompt_file(*PROMPTS), "--json")
    for _ in range(2):
        result = run(*words, tmp_path / "all.json", "--out", tmp_path / "rows.jsonl")
        found = json.loads((tmp_path / "all.json").read_text())
        assert found["warnings"][2:] == ["p0: cpu0: it hung"]
        assert "p0: cpu0: it hung" in result.said
        assert [row["events"] for row in found["prompts"]] == [["cpu0: it hung"], [], []]
    assert (len(texts), texts[1]) == (4, texts[2])


@pytest.mark.parametrize("lost", [MemoryFitError("another program took it"), LaneError("cpu0 died")])
def test_a_stopped_row_that_cannot_be_timed_again_is_kept(run, schedule_file, tmp_path, monkeypatch, lost):
    answer, made = TextEngine.answer, []

    def once(*given, **named):
        if made:
            raise lost
        made.append(answer(*given, **named))
        made[0].trace.events.append(LaneEvent(0.1, "cpu0", "mirrorsd was stopped", is_loss=False))
        return made[0]

    monkeypatch.setattr(TextEngine, "answer", once)
    out = tmp_path / "rows.jsonl"
    run("--schedule", schedule_file(method="autoregressive"), "--prompt", PROMPTS[0], "--out", out)
    [row] = rows_of(out)
    assert (row["text"], row["events"]) == (made[0].text, ["cpu0: mirrorsd was stopped"])


def test_bare_prompts_of_a_renamed_file_are_not_answered_again(run, schedule_file, tmp_path):
    out, named = tmp_path / "rows.jsonl", (tmp_path / "mine.jsonl", tmp_path / "questions.jsonl")
    for path, prompts in zip(named, (PROMPTS[:2], PROMPTS[::-1]), strict=True):
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    words = ("--schedule", schedule_file(method="autoregressive"), "--out", out)
    run(*words, "--prompts", named[0])
    before = out.read_text()
    result = run(*words, "--prompts", named[1], "--json", tmp_path / "all.json")
    assert "has 2 rows already; 1 prompt to go." in result.stderr
    assert out.read_text().startswith(before)
    assert [row["prompt_id"] for row in rows_of(out)] == ["mine-1", "mine-2", "questions-1"]
    found = {row["prompt_id"]: row["token_ids"] for row in json.loads((tmp_path / "all.json").read_text())["prompts"]}
    assert [found[f"questions-{place}"] for place in (3, 2, 1)] == [row["token_ids"] for row in rows_of(out)]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_answers_one_prompt_also_under_another_name(run, schedule_file, tmp_path, temperature):
    named = tmp_path / "mine.jsonl", tmp_path / "questions.jsonl"
    for path, num_prompts in zip(named, (2, 3), strict=True):
        path.write_text((json.dumps({"prompt": PROMPTS[0]}) + "\n") * num_prompts)
    words = ("--schedule", schedule_file(method="autoregressive"), "--temperature", temperature)
    resumed, new = tmp_path / "resumed.jsonl", tmp_path / "new.jsonl"
    run(*words, "--prompts", named[0], "--out", resumed)
    result = run(*words, "--prompts", named[1], "--out", resumed, "--json", tmp_path / "all.json")
    assert "has 2 rows already; 1 prompt to go." in result.stderr
    assert [row["prompt_id"] for row in rows_of(resumed)][2:] == ["questions-3"]
    assert all(row["settings"].get("drawn_by") == (DRAWN_BY if temperature else None) for row in rows_of(resumed))
    run(*words, "--prompts", named[1], "--out", new)
    found = json.loads((tmp_path / "all.json").read_text())["prompts"]
    assert [row["token_ids"] for row in found] == [row["token_ids"] for row in rows_of(new)]
    assert len({row["decode_s"] for row in found}) == 3


def test_a_file_that_answers_another_prompt_of_the_same_id_is_refused_and_left_alone(run, schedule_file, tmp_path):
    out = tmp_path / "rows.jsonl"
    words = ("--schedule", schedule_file(method="autoregressive"), "--out", out)
    run(*words, "--prompt", PROMPTS[0])
    before = out.read_bytes()
    result = run(*words, "--prompt", PROMPTS[1])
    assert (result.exit_code, out.read_bytes()) == (2, before)
    assert "rows.jsonl: the row of 'prompt' answers another prompt" in result.stderr.replace("\n", " ")
    assert run(*words, "--prompt", PROMPTS[0]).exit_code == 0


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize(
    ("role", "method", "told"),
    [
        ("target", "autoregressive", "other weights, tokenizer or config.json of a target of the same name"),
        ("drafter", "speculative", "other files of a drafter of the same name"),
        ("exits", "mirror", "other files of exits of the same name"),
        ("medusa", "medusa", "other files of a drafter of the same name"),
    ],
)
def test_a_file_of_models_that_were_trained_again_under_their_names_is_refused_and_left_alone(
    tiny_folders, head_folders, schedule_file, tmp_path, role, method, told
):
    models = {role: getattr(tiny_folders, role, None) or head_folders[role] for role in ("target", role)}
    models = {name: shutil.copytree(folder, tmp_path / name) for name, folder in models.items()}
    named = {"medusa": "drafter"}
    options = [word for name, folder in models.items() for word in (f"--{named.get(name, name)}", folder)]
    if role == "exits":
        options += ["--drafter", tiny_folders.drafter]
    out, schedule = tmp_path / "rows.jsonl", schedule_file(**(METHODS | TREES)[method])
    words = ("run", *options, *SETTINGS, "--schedule", schedule, "--out", out, "--prompt", PROMPTS[0])
    call(*words, exit_code=0)
    before = out.read_bytes()
    if role == "target":
        save_target(tiny_target(seed=1), models[role])
    else:
        config = models[role] / "config.json"
        config.write_text(config.read_text() + "\n")
    assert f"other settings ({told}); name another --out" in error_of(*words)
    assert out.read_bytes() == before
    row = json.loads(before)
    del row["settings"][f"{named.get(role, role)}_files"]
    out.write_text(json.dumps(row) + "\n")
    assert "older rows are matched by name only: they lack digests of files" in call(*words, exit_code=0).said


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"host": {"cpu_model": "Z80"}}, "other settings (cpu_model 'Z80', not "),
        ({"threads": "cpu0: 7"}, "other settings (threads 'cpu0: 7', not 'cpu0: 1'); name another --out"),
    ],
)
def test_a_file_of_another_machine_is_refused_and_left_alone(run, schedule_file, tmp_path, other, told):
    out = tmp_path / "rows.jsonl"
    words = ("--schedule", schedule_file(method="autoregressive"), "--out", out, "--prompt", PROMPTS[0])
    run(*words)
    (row,) = rows_of(out)
    assert row["settings"]["host"] == computing_host("cpu")
    out.write_text(json.dumps(row | {"settings": row["settings"] | other}) + "\n")
    before = out.read_bytes()
    refused = run(*words)
    assert (refused.exit_code, out.read_bytes()) == (2, before)
    assert told in refused.said
    del row["settings"][next(iter(other))]
    out.write_text(json.dumps(row) + "\n")
    assert "older rows are matched by name only: they lack " in run(*words).said


def test_a_row_of_a_target_as_it_was_typed_is_taken_from_the_same_folder_alone(
    in_threads, tiny_folders, schedule_file, tmp_path, monkeypatch
):
    out, schedule = tmp_path / "rows.jsonl", schedule_file(method="autoregressive")
    words = ("run", "--target", tiny_folders.target, *SETTINGS, "--schedule", schedule, "--out", out, "--prompt")
    call(*words, PROMPTS[0], exit_code=0)
    (row,) = rows_of(out)
    row["settings"]["target"] = tiny_folders.target.name
    out.write_text(json.dumps(row) + "\n")
    monkeypatch.chdir(tmp_path)
    assert f"other settings (target '{tiny_folders.target.name}', not '{tiny_folders.target}')" in error_of(
        *words, PROMPTS[0]
    )
    monkeypatch.chdir(tiny_folders.target.parent)
    assert call(*words, PROMPTS[0]).exit_code == 0


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


SEED_UNUSED = "--seed is not used: at temperature 0 nothing is drawn"


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


@pytest.mark.parametrize("lost", [{1}, {2, 3}, {0, 3}, {0, 1, 2}])
def test_rows_that_are_drawn_again_are_those_that_were_there(run, schedule_file, prompt_file, tmp_path, lost):
    """Also rows that somebody has taken out."""
    out, prompts = tmp_path / "rows.jsonl", prompt_file(*[PROMPTS[0]] * 4)
    words = (
        "--schedule",
        schedule_file(method="autoregressive"),
        "--temperature",
        1,
        "--prompts",
        prompts,
        "--out",
        out,
    )
    run(*words)
    whole = {row["prompt_id"]: row["token_ids"] for row in rows_of(out)}
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(line for place, line in enumerate(lines) if place not in lost))
    run(*words)
    assert {row["prompt_id"]: row["token_ids"] for row in rows_of(out)} == whole
    assert len({tuple(ids) for ids in whole.values()}) == 4


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
        ((), "give either --prompt TEXT or --prompts FILE"),
        (("--prompt", "w1", "--prompts", "x.jsonl"), "give either --prompt TEXT or --prompts FILE"),
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


def test_ctrl_c_leaves_whole_rows_and_says_so(words, schedule_file, prompt_file, tmp_path):
    out, prompts = tmp_path / "rows.jsonl", prompt_file(*PROMPTS * 150)
    more = ("--schedule", schedule_file(method="autoregressive"), "--prompts", prompts, "--out", out)

    def two_rows():
        return out.exists() and out.read_bytes().count(b"\n") >= 2

    status, stdout, stderr = interrupted(words + more, when=two_rows)
    assert (status, stdout) == (130, "")
    assert "Traceback" not in stderr
    found = rows_of(out)
    assert 2 <= len(found) < 450
    assert f"Interrupted. {out} holds {len(found)} of 450 texts; of the one under way nothing is kept. " in stderr
    assert out.read_bytes().endswith(b"}\n")
