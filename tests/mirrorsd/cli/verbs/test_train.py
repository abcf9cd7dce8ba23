import json
import re
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import WordLevel

from mirrorsd.cli.verbs.train import _share
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.tiny_models import VOCAB_SIZE
from training.judging.card import read_card
from training.run import RunProgress

COMMON = "vocab_size: 32\nnum_held_out: 2\noptimisation:\n  num_tokens: 40\n  conversations_per_step: 2\n"
RECIPES = {
    "draft": f"kind: draft\nsource_layers: [1, 4]\nwindows: [2]\n{COMMON}",
    "medusa": f"kind: medusa\nnum_heads: 2\n{COMMON}",
    "streams": f"kind: streams\nstart_layer: 2\nnum_streams: 1\nrank: 2\n{COMMON}",
    "exit": f"kind: exit\nexit_layers: [2]\nwidth: 4\n{COMMON}",
}


@pytest.fixture
def words(tiny_folders, tmp_path):
    data = tmp_path / "answers.jsonl"
    rows = [{"prompt": [5, 6 + row], "answer": [7, 8, 9, 10 + row], "temperature": 0.0} for row in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ("--target", tiny_folders.target, "--data", data, "--out", tmp_path / "mine")


@pytest.fixture
def recipe(tmp_path):
    def write(kind):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(RECIPES[kind])
        return path

    return write


@pytest.mark.parametrize(("verb", "kind"), [("draft", "draft"), ("exits", "exit")])
def test_training_ends_with_a_folder_and_its_card(words, recipe, verb, kind):
    result = call("train", verb, *words, "--recipe", recipe(kind))
    assert result.exit_code == 0, result.stderr
    assert "Trained weights:" in result.stdout
    assert ("Exit coverage" in result.stdout) == (kind == "exit")
    finished = json_of("train", verb, *words, "--recipe", recipe(kind))
    card = read_card(Path(finished["folder"]))
    assert card.model_dump(mode="json") == finished["card"]
    assert (card.name, card.kind) == ("mine", kind)


def test_a_hub_model_is_called_by_its_id(words, recipe, tiny_folders, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tiny_folders.target))
    call("train", "exits", *words[2:], "--target", "owner/model", "--recipe", recipe("exit"), exit_code=0)
    assert read_card(words[-1] / "drafter").target == "owner/model"


def test_a_draft_trained_with_its_streams_is_used_as_a_draft(words, recipe, tmp_path):
    call("train", "recipe", recipe("draft"), *words)
    sizes = "start_layer: 1\nnum_streams: 1\nrank: 2\nwindows: [2]"
    path = tmp_path / "streaming.yaml"
    path.write_text(f"kind: streaming_draft\ndrafter: {words[-1]}\n{sizes}\n{COMMON}")
    result = call("train", "recipe", path, *words[:-1], tmp_path / "streaming")
    assert result.exit_code == 0, result.stderr
    assert f"--drafter {tmp_path / 'streaming' / 'drafter'} --device cpu\n" in result.stdout


@pytest.mark.parametrize(("kind", "device"), [("streams", " --device cpu"), ("medusa", "")])
def test_training_ends_with_a_demo_that_leaves_nothing_out(words, recipe, kind, device):
    result = call("train", "recipe", recipe(kind), *words, exit_code=0)
    assert f" --heads {words[-1] / 'drafter'}{device}\n" in result.stdout


def test_the_card_is_shown_in_tables_for_people(words, recipe):
    shown = call("train", "draft", *words, "--recipe", recipe("draft")).stdout
    assert "---" not in shown
    assert "|" not in shown
    assert re.search(r"trained parameters +\d+", shown)
    assert re.search(r"agreement_without_features +[01]\.\d{3}", shown)
    assert f"The card: {words[-1] / 'drafter' / 'card.md'}" in shown


def test_the_share_that_is_done_never_falls_and_ends_with_the_run():
    shares = [
        _share(RunProgress(stage=stage, done=done, total=10))[1]
        for stage in ("states", "training", "judging")
        for done in (0, 4, 10, 11)
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.9 < shares[-1] < 1, "a bar that is full stops its clock"


def test_the_targets_states_lie_where_they_are_asked_for(words, recipe, tmp_path):
    shared = tmp_path / "states"
    call("train", "draft", *words, "--recipe", recipe("draft"), "--states", shared, exit_code=0)
    assert [path.name for path in shared.glob("*.bin")] == ["layer-4.bin"]
    assert list(tmp_path.glob("*/states")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--recipe": "OTHER"}, "is a recipe of kind 'exit', not 'draft'"),
        ({"--target": "shape:qwen3-0.6b"}, "shape:qwen3-0.6b: has random weights, from which nothing can be learnt"),
        ({"--recipe": "mine"}, "smollm2-135m-medusa, smollm2-135m-streams)"),
    ],
)
def test_what_is_wrong_is_named(words, recipe, changes, message):
    known = {"OTHER": recipe("exit")}
    given = {"--recipe": recipe("draft"), **dict(zip(words[::2], words[1::2], strict=True)), **changes}
    result = call("train", "draft", *(known.get(word, word) for pair in given.items() for word in pair))
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("verb", ["generate", "draft"])
def test_ctrl_c_says_what_was_saved_once_something_is(words, recipe, tmp_path, monkeypatch, verb, is_late, is_there):
    out = tmp_path / "there"

    def interrupted(*_, **__):
        if is_late:  # before any progress
            out.write_text("") if verb == "generate" else out.mkdir(exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("training.text.generate_text.write_self_text", interrupted)
    monkeypatch.setattr("training.run.run_recipe", interrupted)
    own = ("--out", out) if verb == "generate" else (*words[2:-1], out, "--recipe", recipe("draft"))
    if is_there:
        out.write_text("{}") if verb == "generate" else out.mkdir()
    result = call("train", verb, *words[:2], *own)
    assert result.exit_code == 130
    told = "Nothing was written." if not (is_late or is_there) else f"in {out}; the same command continues"
    assert told in " ".join(result.stderr.split())


def test_only_recipes_for_text_are_named_where_text_is_asked_for(tmp_path):
    told = error_of("train", "generate", "--recipe", "mine", "--out", tmp_path / "text.jsonl")
    assert "nor a shipped recipe (smollm2-135m-passages, smollm2-135m-selfgen)" in told


def test_own_text_needs_a_chat_template(tiny_folders, tmp_path):
    out = tmp_path / "text.jsonl.gz"
    assert "has no chat template, which text is generated in" in error_of(
        "train", "generate", "--target", tiny_folders.target, "--out", out
    )
    assert not out.exists()


def test_own_text_comes_with_what_the_folder_asks_for_and_nobody_applies(tiny_folders, tmp_path, monkeypatch):
    target, recipe = shutil.copytree(tiny_folders.target, tmp_path / "mine"), tmp_path / "text.yaml"
    (target / "chat_template.jinja").write_text("{% for message in messages %}4 {{ message.content }} 3 {% endfor %}")
    numbers = tokenizers.Tokenizer(WordLevel({str(number): number for number in range(VOCAB_SIZE)}, unk_token="1"))
    numbers.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    numbers.save(str(target / "tokenizer.json"))
    (target / "generation_config.json").write_text('{"repetition_penalty": 1.1, "top_k": 20, "temperature": 0.6}')
    sizes = "{num_conversations: 2, max_user_tokens: 4, max_answer_tokens: 4, batch_size: 2}"
    recipe.write_text(sizes.replace("{", "{kind: selfgen, openers: ['7', 9 8], "))
    words = ("train", "generate", "--target", target, "--recipe", recipe, "--out", tmp_path / "text.jsonl")
    told = f"{target / 'generation_config.json'} asks for repetition_penalty 1.1, top_k 20, which is not applied here"
    [warning] = json_of(*words)["warnings"]
    assert warning.startswith(told)
    assert told in call(*words).said
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(target))
    call(*words[:3], "owner/model", *words[4:-1], tmp_path / "hub.jsonl", exit_code=0)
    assert json.loads((tmp_path / "hub.jsonl.provenance.json").read_text())["model"] == "owner/model"
