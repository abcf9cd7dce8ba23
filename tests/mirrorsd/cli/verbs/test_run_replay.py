"""The verb with models of which only the shapes are there: a record's texts are replayed."""

import json

import pytest

from decoding.record import AcceptanceRecord
from tests.mirrorsd.cli.calls import call
from tests.planner.synthetic import acceptance_record
from tests.tiny_models import TINY_SHAPE

LABEL = "random weights, replayed acceptance"


@pytest.fixture
def shapes(in_threads, tmp_path, empty_cache):
    """Runs a target and a draft of which only the shapes are there."""
    for name, raw in (("large", TINY_SHAPE), ("small", TINY_SHAPE | {"num_hidden_layers": 1})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
    models = ("--target", f"shape:{tmp_path / 'large'}", "--drafter", f"shape:{tmp_path / 'small'}")
    return lambda *more: call("run", *models, "--quiet", *more)


@pytest.mark.parametrize("name", ["autoregressive", "speculative"])
def test_shapes_replay_a_record_of_another_pair_and_say_so_everywhere(
    shapes, schedule_file, record_path, tmp_path, name
):
    out = tmp_path / "rows.jsonl"
    words = ("--schedule", schedule_file(method=name), "--replay", record_path, "--max-new-tokens", 12)
    result = shapes(*words, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    recorded = AcceptanceRecord.load(record_path).prompts
    found, rows = json.loads(result.stdout), [json.loads(line) for line in out.read_text().splitlines()]
    assert found["label"] == LABEL
    assert f"With {LABEL}: " in result.stderr
    assert [row["label"] for row in rows] == [row["label"] for row in found["prompts"]] == [LABEL] * 3
    assert [row["prompt_id"] for row in rows] == [one.name for one in recorded]
    assert [row["token_ids"] for row in rows] == [one.text[:12].tolist() for one in recorded]
    assert {row["settings"]["replay"] for row in rows} == {str(record_path)}
    if name == "speculative":
        assert found["num_rounds"] < found["num_tokens"]


def test_a_file_of_a_record_that_was_made_again_under_its_name_is_refused(shapes, schedule_file, record_path, tmp_path):
    words = ("--schedule", schedule_file(method="autoregressive"), "--max-new-tokens", 12, "--out", tmp_path / "rows")
    assert shapes(*words, "--replay", record_path).exit_code == 0
    acceptance_record(num_prompts=3, num_tokens=41).save(record_path)
    told = "other settings (another record or other rates in a file of the same name)"
    assert told in shapes(*words, "--replay", record_path).said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--prompt", "w5"), "has random weights and cannot read prompts"),
        ((), "give exactly one of --prompt TEXT, --prompts FILE and --replay RECORD"),
        (("--replay", "2"), "rates are from 0 to 1"),
        (("--replay", "1", "--temperature", "1"), "temperature is 1.0, but acceptance is replayed at temperature 0"),
    ],
)
def test_what_shapes_cannot_do_is_said(shapes, schedule_file, words, complaint):
    result = shapes("--schedule", schedule_file(), *words)
    assert result.exit_code == 2
    assert complaint in result.said


def test_what_needs_no_model_to_be_refused_is_refused_before_a_prompt_is_named(
    shapes, in_threads, tiny_folders, schedule_file, lane_names, monkeypatch
):
    """A line with the prompt's number says that it is being answered."""
    prompt = ("run", "--target", tiny_folders.target, "--quiet", "--prompt", "w5 w17 w3", "--schedule")
    refused = {
        "positions; the target has": shapes("--schedule", schedule_file(), "--replay", "1", "--max-new-tokens", 500),
        "is simulated only": call(*prompt, schedule_file(method="block", draft_lane=lane_names[0], drafter=None)),
    }
    monkeypatch.setattr("runtime.memory.needs.available_bytes", lambda: 0)
    refused["more memory needed"] = call(*prompt, schedule_file(method="autoregressive"))
    for said, result in refused.items():
        assert (result.exit_code, said in result.said, "1/1" in result.stderr) == (2, True, False), result.stderr
