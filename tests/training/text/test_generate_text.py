import gzip
import json
from itertools import pairwise
from types import MappingProxyType

import pytest
import torch

from decoding.errors import ConfigError, TrainingError
from tests.runtime import plain
from tests.runtime.reading import first_layers
from tests.tiny_models import EOS, tiny_target
from tests.training.conftest import NumberTokenizer
from training.data.states import Conversation, read_conversations
from training.recipe import PassageRecipe, SelfTextRecipe
from training.text import generate_text as generate
from training.text.generate_text import PassageTurns, generate_conversations

RECIPE = SelfTextRecipe(
    num_conversations=20, openers=("7", "8 9", "11 40 3"), max_user_tokens=5, max_answer_tokens=8, batch_size=6, seed=4
)


@pytest.fixture
def make(tmp_path):
    def generate_it(recipe=RECIPE, name="text.jsonl.gz", target_seed=0, sizes=MappingProxyType({}), **options):
        path, target = tmp_path / name, tiny_target(target_seed, **sizes)
        options = {"target_name": "tiny-target"} | options
        generate_conversations(recipe, target, NumberTokenizer(), path, **options)
        return path

    return generate_it


def test_the_file_holds_as_many_distinct_conversations_as_asked_for(make):
    seen = []
    path = make(progress=lambda done, total: seen.append((done, total)))
    rows = read_conversations([path], vocab_size=61)
    assert len(rows) == len({row.prompt for row in rows}) == 20
    assert seen[-1] == (20, 20)
    assert all(earlier <= later for earlier, later in pairwise(seen))
    before = path.read_bytes()
    make(progress=lambda *_: pytest.fail("a finished file is left as it is"))
    assert path.read_bytes() == before


def test_a_user_turn_begins_with_an_opener_and_stands_in_the_chat_template(make):
    for row in read_conversations([make()], vocab_size=61):
        assert row.prompt[0] == 1
        assert row.prompt[-4:] == (EOS, 4, 1, 3)
        content = row.prompt[1:-4]
        assert any(content[: len(start)] == start for start in ((7,), (8, 9), (11, 40, 3)))
        assert EOS not in content


def test_greedy_answers_are_what_the_target_says_and_answers_end_with_their_turn(make):
    target = tiny_target()
    rows = read_conversations([make()], vocab_size=61)
    greedy = [row for row in rows if row.temperature == 0]
    assert 0 < len(greedy) < len(rows)
    for row in greedy:
        assert list(row.answer) == plain.continue_text(target, row.prompt, 8, eos=(EOS,))
    assert {row.temperature for row in rows} == {0.0, 0.8}


def test_the_same_seed_gives_the_same_file_and_another_seed_another(make):
    first, second = make(name="a.jsonl"), make(name="b.jsonl")
    other = make(RECIPE.model_copy(update={"seed": 5}), name="c.jsonl")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("name", ["text.jsonl", "text.jsonl.gz", "text.jsonl.GZ"])
def test_an_interrupted_file_is_finished_as_if_nothing_had_happened(make, name):
    whole = make(name=f"whole-{name}")
    assert (whole.read_bytes()[:2] == b"\x1f\x8b") == name.lower().endswith(".gz")

    def interrupt(done, total):
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(name=name, progress=interrupt)
    path = whole.with_name(name)
    with path.open("ab") as file:
        file.write(b'{"prompt":[1,7,')  # a batch that was being written when the power went
    assert make(name=name).read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("num_done", [0, 5])
def test_two_runs_do_not_write_one_file_at_once(make, num_done):
    whole, refused = make(name="whole.jsonl"), []

    def begin_another(done, total):
        if done > num_done and not refused:
            with pytest.raises(TrainingError, match=r"text.jsonl: another run is writing it .*; name another file"):
                make(name="text.jsonl")
            refused.append(done)

    assert make(name="text.jsonl", progress=begin_another).read_bytes() == whole.read_bytes()
    assert refused


def test_the_provenance_names_model_dtype_recipe_and_extent(make):
    path = make()
    provenance = json.loads((path.parent / "text.jsonl.gz.provenance.json").read_text())
    assert provenance["model"] == "tiny-target"
    assert provenance["dtype"] == "torch.float32"
    assert provenance["recipe"]["seed"] == 4
    assert provenance["num_conversations"] == 20 == len(gzip.decompress(path.read_bytes()).splitlines())
    assert provenance["num_bytes"] == path.stat().st_size


def test_a_file_of_another_recipe_or_of_unknown_origin_is_not_touched(make, tmp_path):
    path = make()
    before = path.read_bytes()
    with pytest.raises(TrainingError, match="was begun with another recipe: name another file"):
        make(RECIPE.model_copy(update={"num_conversations": 30}))
    assert path.read_bytes() == before
    (tmp_path / "mine.jsonl").write_text("precious")
    with pytest.raises(TrainingError, match=r"mine.jsonl: is there, but not mine.jsonl.provenance.json"):
        make(name="mine.jsonl")


def test_a_target_of_other_weights_under_the_same_name_goes_on_with_no_text(make):
    path = make()
    before = path.read_bytes()
    for name in ("tiny-target", "another"):
        with pytest.raises(TrainingError, match="was begun with a tiny-target of other weights: name another file"):
            make(target_seed=1, target_name=name)
    assert path.read_bytes() == before


@pytest.mark.parametrize("opener", ["77", "7 8"])
def test_a_token_without_an_embedding_is_told(make, monkeypatch, opener):
    monkeypatch.setattr(NumberTokenizer, "tokens", lambda _: {77: "<|77|>", 70: "<|70|>"}, raising=False)
    if opener != "77":  # what the target goes on with is read as another token
        monkeypatch.setattr(generate.OpenedTurns, "draw", lambda *_: ["70"])
    with pytest.raises(ConfigError, match=r"'<.7[07].>' is token 7[07] of the target's .*; embeddings end at 60"):
        make(RECIPE.model_copy(update={"openers": (opener,)}))


def test_a_turn_that_is_read_as_a_token_without_an_embedding_is_dropped(make, monkeypatch):
    draw = generate.OpenedTurns.draw
    monkeypatch.setattr(generate.OpenedTurns, "draw", lambda *args: ["7 70", *draw(*args)[1:]])
    rows = read_conversations([make()], vocab_size=61)
    assert len(rows) == RECIPE.num_conversations


def test_a_file_goes_on_with_the_same_weights_by_whatever_name(make):
    before = make().read_bytes()
    assert make(target_name="owner/tiny").read_bytes() == before


def test_a_file_that_lost_its_end_is_named(make):
    path = make()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TrainingError, match=r"text.jsonl.gz: shorter than .* records"):
        make()


def test_a_target_with_nothing_new_to_say_ends_in_an_error(make):
    silent = RECIPE.model_copy(update={"openers": ("7",), "user_temperature": 1e-6, "max_user_tokens": 1})
    with pytest.raises(TrainingError, match="tiny-target repeats itself: name more openers"):
        make(silent)


def test_user_turns_end_where_a_prompt_would_leave_no_room_for_its_answer(make):
    endless = {"max_position": 24, "eos_token_ids": ()}
    rows = read_conversations([make(RECIPE.model_copy(update={"max_user_tokens": 90}), sizes=endless)], vocab_size=61)
    assert max(len(row.prompt) for row in rows) == 24 - RECIPE.max_answer_tokens
    assert max(len(row.ids) for row in rows) == 24


@pytest.mark.parametrize("positions", [14, 9, 3])
def test_openers_that_leave_no_room_for_an_answer_are_told(make, positions):
    left = f"max_answer_tokens 8: of the target's {positions} positions it leaves {max(positions - 8, 0)}, and a prompt"
    with pytest.raises(TrainingError, match=f"{left} takes 7; lower it, or shorten the prompts"):
        make(sizes={"max_position": positions})


def test_an_opener_that_is_too_long_costs_its_own_turns_alone(make):
    rows = read_conversations(
        [make(RECIPE.model_copy(update={"num_conversations": 3}), sizes={"max_position": 16})], vocab_size=61
    )
    assert max(len(row.prompt) for row in rows) <= 16 - RECIPE.max_answer_tokens


@pytest.mark.parametrize("num_complete", [0, 1])
def test_a_full_disk_keeps_what_is_complete_and_makes_a_first_batch_again(make, monkeypatch, num_complete):
    whole = make(name="whole.jsonl")
    original = generate.replace_file
    saves = []

    def fill_up(path, content):
        if path.with_name("text.jsonl").exists():
            if len(saves) == num_complete:
                raise OSError(28, "No space left on device")
            saves.append(path)
        original(path, content)

    monkeypatch.setattr(generate, "replace_file", fill_up)
    with pytest.raises(TrainingError, match=r"text.jsonl: cannot be written .*No space left"):
        make(name="text.jsonl")
    monkeypatch.undo()
    assert make(name="text.jsonl").read_bytes() == whole.read_bytes()


def test_a_model_with_the_embedded_ones_words_goes_on_from_an_opener_and_answers(embedded_model_folder, tmp_path):
    from runtime.models.decoder import load_decoder
    from runtime.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(embedded_model_folder)
    recipe = SelfTextRecipe(
        num_conversations=2, openers=("What is the capital of",), max_user_tokens=6, max_answer_tokens=4, batch_size=3
    )
    target = first_layers(load_decoder(embedded_model_folder, dtype=torch.float32), num_layers=2)
    path = tmp_path / "text.jsonl"
    generate_conversations(recipe, target, tokenizer, path, target_name="smollm2")
    for row in read_conversations([path], vocab_size=target.config.vocab_size):
        text = tokenizer.decode(row.prompt, skip_special_tokens=False)
        assert "<|im_start|>user\nWhat is the capital of" in text
        assert text.endswith("<|im_start|>assistant\n")


# Passages

ANSWERS = [(10, 11, 12), (20, 21, 22), (30, 31, 32), (40, 41, 42)]
SOURCES = [Conversation((1, 5, answer[0] - 1, EOS, 4, 1, 3), (*answer, EOS)) for answer in ANSWERS]
PASSAGES = PassageRecipe(
    num_conversations=12,
    templates=("7 {passage}", "8 {question} 9 {passage}"),
    passage_tokens=(5, 8),
    max_answer_tokens=6,
    batch_size=4,
)


def draw(count=60, seed=0, recipe=PASSAGES):
    turns = PassageTurns(recipe, NumberTokenizer(), SOURCES).draw(count, torch.Generator().manual_seed(seed))
    return [[int(word) for word in turn.split()] for turn in turns]


def test_passages_are_whole_answers_up_to_the_tokens_wanted():
    for turn in draw():
        passages = turn[1:] if turn[0] == 7 else turn[4:]
        answers = {tuple(passages[at : at + 3]) for at in range(0, len(passages), 3)}
        assert answers <= set(ANSWERS)
        assert len(passages) in (6, 12 - 6)  # two answers of four tokens, end of turn included, make 5 to 8


def test_more_tokens_take_more_passages():
    long = PASSAGES.model_copy(update={"passage_tokens": (9, 12), "templates": ("7 {passage}",)})
    assert {len(turn) for turn in draw(recipe=long)} == {1 + 3 * 3}


def test_a_question_is_the_user_turn_that_one_of_the_passages_answered():
    asking = [turn for turn in draw() if turn[0] == 8]
    assert 10 < len(asking) < 50
    for turn in asking:
        opener, question, nine, passages = turn[1], turn[2], turn[3], turn[4:]
        assert (opener, nine) == (5, 9)
        assert question + 1 in passages[::3]


def test_every_template_and_every_conversation_is_used_and_the_seed_decides():
    turns = draw()
    assert {turn[0] for turn in turns} == {7, 8}
    assert {number for turn in turns for number in turn} >= {answer[0] for answer in ANSWERS}
    assert turns == draw()
    assert turns != draw(seed=1)


def test_the_target_answers_requests_about_passages(make):
    path = make(PASSAGES, sources=SOURCES)
    rows = read_conversations([path], vocab_size=61)
    assert len(rows) == len({row.prompt for row in rows}) == 12
    for row in rows:
        assert row.prompt[0] == 1
        assert row.prompt[1] in (7, 8)
        if row.temperature == 0:
            assert list(row.answer) == plain.continue_text(tiny_target(), row.prompt, 6, eos=(EOS,))
    provenance = json.loads((path.parent / "text.jsonl.gz.provenance.json").read_text())
    assert provenance["recipe"]["kind"] == "passages"
    assert len(provenance["sources"]) == 64


def test_a_file_is_not_gone_on_with_from_other_passages(make):
    make(PASSAGES, sources=SOURCES)
    with pytest.raises(TrainingError, match="was begun with another sources"):
        make(PASSAGES, sources=SOURCES[:2])


def test_passages_that_leave_no_room_for_an_answer_are_told(make):
    with pytest.raises(TrainingError, match="max_answer_tokens 6: of the target's 16 positions it leaves 10, .* takes"):
        make(PASSAGES, sources=SOURCES, sizes={"max_position": 16})


def test_passages_must_come_from_somewhere_and_openers_take_none(make):
    with pytest.raises(TrainingError, match="'passages' needs conversations to take them from"):
        make(PASSAGES)
    with pytest.raises(TrainingError, match="'selfgen' takes no passages"):
        make(sources=SOURCES)
