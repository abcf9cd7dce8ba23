"""A file of rows is resumed where it was, and left alone where it is of something else."""

import json
import shutil

import pytest

from decoding.errors import LaneError, MemoryFitError
from decoding.trace import LaneEvent
from hwprofiles.host import computing_host
from mirrorsd.text_engine import TextEngine
from tests.mirrorsd.cli.calls import call, error_of
from tests.mirrorsd.cli.interrupt import interrupted
from tests.mirrorsd.cli.verbs.run.asked import METHODS, PROMPTS, SETTINGS, TREES, rows_of
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target


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
    troubles = [LaneEvent(0.1, "cpu0", "it hung"), LaneEvent(0.1, "cpu0", "mirrorsd stood still", is_loss=False)]

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
        made[0].trace.events.append(LaneEvent(0.1, "cpu0", "mirrorsd stood still", is_loss=False))
        return made[0]

    monkeypatch.setattr(TextEngine, "answer", once)
    out = tmp_path / "rows.jsonl"
    run("--schedule", schedule_file(method="autoregressive"), "--prompt", PROMPTS[0], "--out", out)
    [row] = rows_of(out)
    assert (row["text"], row["events"]) == (made[0].text, ["cpu0: mirrorsd stood still"])


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
    assert f"Interrupted. {out} has {len(found)} of 450 texts, but not the unfinished one. " in stderr
    assert out.read_bytes().endswith(b"}\n")
