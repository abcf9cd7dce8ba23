import json

import pytest
import torch

from decoding.errors import TrainingError
from tests.runtime import plain
from tests.tiny_models import EOS, tiny_target
from tests.training.conftest import NumberTokenizer
from training.data.states import Conversation, read_conversations
from training.recipe import PassageRecipe, SelfTextRecipe
from training.text.generate_text import PassageTurns, generate_conversations

ANSWERS = [(10, 11, 12), (20, 21, 22), (30, 31, 32), (40, 41, 42)]
SOURCES = [Conversation((1, 5, answer[0] - 1, EOS, 4, 1, 3), (*answer, EOS)) for answer in ANSWERS]
RECIPE = PassageRecipe(
    num_conversations=12,
    templates=("7 {passage}", "8 {question} 9 {passage}"),
    passage_tokens=(5, 8),
    max_answer_tokens=6,
    batch_size=4,
)


def draw(count=60, seed=0, recipe=RECIPE):
    turns = PassageTurns(recipe, NumberTokenizer(), SOURCES).draw(count, torch.Generator().manual_seed(seed))
    return [[int(word) for word in turn.split()] for turn in turns]


def test_passages_are_whole_answers_up_to_the_tokens_wanted():
    for turn in draw():
        passages = turn[1:] if turn[0] == 7 else turn[4:]
        answers = {tuple(passages[at : at + 3]) for at in range(0, len(passages), 3)}
        assert answers <= set(ANSWERS)
        assert len(passages) in (6, 12 - 6)  # two answers of four tokens, end of turn included, make 5 to 8


def test_more_tokens_take_more_passages():
    long = RECIPE.model_copy(update={"passage_tokens": (9, 12), "templates": ("7 {passage}",)})
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


@pytest.fixture
def make(tmp_path):
    def generate_it(recipe=RECIPE, sources=SOURCES):
        path = tmp_path / "long.jsonl"
        generate_conversations(
            recipe, tiny_target(), NumberTokenizer(), path, target_name="tiny-target", sources=sources
        )
        return path

    return generate_it


def test_the_target_answers_requests_about_passages(make):
    path = make()
    rows = read_conversations([path], vocab_size=61)
    assert len(rows) == len({row.prompt for row in rows}) == 12
    for row in rows:
        assert row.prompt[0] == 1
        assert row.prompt[1] in (7, 8)
        if row.temperature == 0:
            assert list(row.answer) == plain.continue_text(tiny_target(), row.prompt, 6, eos=(EOS,))
    provenance = json.loads((path.parent / "long.jsonl.provenance.json").read_text())
    assert provenance["recipe"]["kind"] == "passages"
    assert len(provenance["sources"]) == 64


def test_a_file_is_not_gone_on_with_from_other_passages(make):
    make()
    with pytest.raises(TrainingError, match="was begun with another sources"):
        make(sources=SOURCES[:2])


def test_passages_must_come_from_somewhere_and_openers_take_none(make):
    with pytest.raises(TrainingError, match="'passages' needs conversations to take them from"):
        make(sources=())
    with pytest.raises(TrainingError, match="'selfgen' takes no passages"):
        make(SelfTextRecipe(num_conversations=2, openers=("7",)))
