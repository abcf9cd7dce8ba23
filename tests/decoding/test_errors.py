"""A message can be read on a terminal, whatever it is about."""

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from decoding.errors import MOST_CHARACTERS, ConfigError, LaneTimeoutError, cut, listed, mistake, shown, unknown


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@given(st.text(max_size=2000))
def test_a_message_keeps_its_beginning_and_its_end(text):
    found = str(ConfigError(text))
    assert len(found) == min(len(text), MOST_CHARACTERS)
    assert found[:300] == text[:300]
    assert found[-100:] == text[-100:]
    if len(text) <= MOST_CHARACTERS:
        assert found == text


LARGE = {
    "text": "x" * 10**6,
    "list": list(range(10**5)),
    "nested": nested(10**4),
    "map": {"a" * 900: ["b" * 900] * 900},
    "integer": 10**5000,
    "bytes": b"z" * 10**6,
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_a_value_is_shown_in_200_characters(value):
    assert len(shown(value)) <= 200


def test_a_small_value_is_shown_as_it_is():
    for value in ("it's", 1.5, None, [1, "two"], {"a": (1,)}):
        assert shown(value) == repr(value)


def test_what_a_check_of_ours_says_stands_by_itself():
    item = {"loc": ("npu",), "msg": "Value error, dispatch_s and dispatch_of belong together", "input": {}}
    assert mistake(item) == "npu: dispatch_s and dispatch_of belong together"


class Told(BaseModel):
    numbers: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,)
    by_name: dict[str, float] = {}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (3, "(whole file): Input should be a valid map, found 3"),
        ({"numbers": 3}, "numbers: Input should be a valid list, found 3"),
        ({"numbers": []}, "numbers: Value should have at least 1 item, not 0"),
        ({"by_name": 3}, "by_name: Input should be a valid map, found 3"),
    ],
)
def test_types_of_python_are_named_as_a_file_has_them(told, words):
    with pytest.raises(ValidationError) as caught:
        Told.model_validate(told)
    assert [mistake(item) for item in caught.value.errors()] == [words]


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=30))
def test_as_many_mistakes_are_listed_as_there_is_room_for(mistakes):
    found = listed(mistakes)
    assert len(found) <= MOST_CHARACTERS
    assert found.startswith(cut(mistakes[0], 400)[:200])
    assert found == "\n".join(mistakes) or found.endswith(" more mistakes")


def test_a_lane_that_did_not_answer_hands_over_tokens_too():
    assert LaneTimeoutError("late", tokens=[1, 2]).tokens == (1, 2)
    assert LaneTimeoutError("late").tokens == ()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("RTX-4090 ", "did you mean rtx4090?"),
        ("qwen3_8", "did you mean qwen3-8b"),
        ("4090", "did you mean rtx4090?"),
        ("abacus", "there are rtx4090"),
        ("", "there are rtx4090"),
    ],
)
def test_of_many_names_those_that_are_close_are_told(typed, told):
    names = ["rtx4090", "qwen3-8b", "qwen3-14b", *(f"other{one}" for one in "abcdefgh")]
    assert f"no device is called {typed!r}; {told}" in unknown("device", typed, names)
    assert "there are rtx4090, qwen3-8b" in unknown("device", typed, names[:3])


def test_of_names_that_are_as_close_those_that_are_written_alike_come_first():
    names = ["qwen3-14b", *(f"qwen3.5-{size}b" for size in (2, 4, 7, 9)), *(f"other{one}" for one in "abcd")]
    assert "did you mean qwen3-14b or " in unknown("model shape", "qwen3-15b", names)


def test_of_very_many_names_the_nearest_few_are_told_where_none_is_close():
    names = ["ryzen-5800x", "rtx4070", *(f"model-{one}" for one in range(200))]
    told = unknown("platform", "RTX 4070 + 5800X3D", names)
    assert "there are rtx4070, " in told
    assert told.endswith(" and 197 others, less like it")
    assert len(unknown("platform", "", names)) < 200
