"""Any model may move in: a target without a draft model has text and heads to draft, or another model drafts for it."""

import json
import shutil

import pytest
import torch

from decoding.record import AcceptanceRecord
from hwprofiles.host import lanes_of
from runtime.models.decoder import Decoder
from tests.mirrorsd.cli.calls import error_of
from tests.mirrorsd.cli.verbs.test_demo import call_quickly
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_config

PROMPTS = ("w5 w17 w3 w44 w5 w17", "w9 w9 w4 w9 w9")
pytestmark = pytest.mark.usefixtures("forked_lanes")
two_cores = pytest.mark.skipif(len(lanes_of("cpu")) < 3, reason="mirror needs two cores, and this machine has one")


@pytest.fixture(scope="module")
def run_demo(tmp_path_factory, tiny_folders, forked_lanes):
    """Runs a demo of the given models; its folder, what it printed, and the JSON object."""

    def run(*models):
        root = tmp_path_factory.mktemp("demo")
        prompts = root / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
        words = ("--prompts", prompts, "--dtype", "float32", "--max-new-tokens", 10, "--max-window", 2)
        result = call_quickly(
            "demo", *models, *words, "--minutes", 60, "--out", root / "out", "--json", root / "demo.json"
        )
        assert result.exit_code == 0, result.output + result.stderr
        return root / "out", result, json.loads((root / "demo.json").read_text())

    return run


@pytest.fixture(scope="module")
def alone(run_demo, tiny_folders, head_folders):
    """A target whose only drafters are a head and the text itself."""
    heads = f"{head_folders['eagle']},prompt-lookup"
    return run_demo("--target", tiny_folders.target, "--drafter", "none", "--heads", heads)


@pytest.fixture(scope="module")
def model_pair(tmp_path_factory, tiny_folders):
    """(target, draft): fresh random Qwen3 models of two sizes with one tokenizer."""
    root = tmp_path_factory.mktemp("qwen")
    sizes = {"big": {"num_layers": 3}, "small": {"num_layers": 1, "hidden_size": 32, "intermediate_size": 48}}
    for seed, (name, changes) in enumerate(sizes.items()):
        torch.manual_seed(seed)
        decoder = Decoder(tiny_config(architecture="Qwen3ForCausalLM", qk_norm=True, max_position=512, **changes))
        save_target(decoder, root / name)
        shutil.copy(tiny_folders.target / "tokenizer.json", root / name)
    return root / "big", root / "small"


@pytest.fixture(scope="module")
def paired(run_demo, model_pair):
    target, draft = model_pair
    return run_demo("--target", target, "--drafter", draft)


def test_a_target_without_a_draft_model_ends_with_a_verdict_and_a_page(alone):
    folder, shown, result = alone
    methods = {entry["method"] for entry in result["schedules"]}
    assert methods == {"autoregressive", "prompt_lookup", "eagle2"}
    assert result["verdict"] in shown.stdout
    assert (folder / "report.html").is_file()
    assert AcceptanceRecord.load(folder / "record.npz").drafter is None


@two_cores
def test_another_model_as_draft_is_searched_in_turn_and_at_the_same_time(paired):
    folder, _, result = paired
    kinds = {(entry["method"], entry["schedule"].get("root_source")) for entry in result["schedules"]}
    assert kinds >= {("prompt_lookup", None), ("speculative", None), ("mirror", "draft"), ("autoregressive", None)}
    record = AcceptanceRecord.load(folder / "record.npz")
    assert record.feature_layers == ()
    assert [chain.method for chain in record.chains] == ["prompt_lookup"]


@pytest.mark.parametrize("which", ["alone", "paired"])
def test_in_float32_every_text_is_that_of_plain_decoding_and_every_round_the_simulated_one(which, request):
    for entry in request.getfixturevalue(which)[2]["schedules"]:
        assert entry["same_rounds"], entry["name"]
        assert entry["divergences"] == []


def test_a_draft_of_other_words_is_refused_before_anything_is_measured(model_pair, tmp_path):
    target, draft = model_pair
    other = shutil.copytree(draft, tmp_path / "other")
    text = (other / "tokenizer.json").read_text().replace('"w7"', '"seven"')
    (other / "tokenizer.json").write_text(text)
    assert "first at id 7, which is 'seven' for the draft and 'w7' for the target" in error_of(
        "record", "--target", target, "--drafter", other, "--out", tmp_path / "record.npz"
    )


@pytest.mark.parametrize(("heads", "left_out"), [("none", ""), ("streams", "streams read the KV cache")])
def test_a_demo_in_which_nothing_drafts_is_refused_before_anything_is_measured(
    heads, left_out, tiny_folders, head_folders, tmp_path
):
    words = "--drafter", "none", "--heads", head_folders.get(heads, heads), "--device", "openvino:CPU"
    said = error_of("demo", "--target", tiny_folders.target, *words, "--out", tmp_path / "out")
    assert left_out in said
    assert f"Nothing drafts for {tiny_folders.target}: name a draft model (--drafter) or heads (--heads)" in said
    assert not (tmp_path / "out").exists()
