"""Types from files are not converted, and what is wrong with a list is not said of each of its items."""

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from decoding import validation
from decoding.validation import IntKey, Many, Pair, described, told
from decoding.yaml_file import StrictModel


class Part(StrictModel):
    seconds: float
    rows: Many[int] = ()


class Whole(StrictModel):
    parts: Annotated[Many[Part], Field(min_length=1)]
    pair: Pair[float] | None = None
    by_layer: dict[IntKey, Part] = Field(default={})


def refusal(**data: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"parts": [{"seconds": 1}], **data})
    return caught.value


def test_lists_pairs_and_keys_of_a_file_become_tuples_and_numbers():
    found = Whole.model_validate(
        {"parts": [{"seconds": 1, "rows": [2]}], "pair": [1, 2], "by_layer": {"3": {"seconds": 4}}}
    )
    assert found.parts == (Part(seconds=1.0, rows=(2,)),)
    assert found.pair == (1.0, 2.0)
    assert found.by_layer[3].seconds == 4.0


@pytest.mark.parametrize("value", [True, "1.5", "1", None])
def test_what_is_no_number_is_none(value):
    assert "parts.0.seconds" in described(refusal(parts=[{"seconds": value}]))
    assert "parts.0.rows.0" in described(refusal(parts=[{"seconds": 1, "rows": [value]}]))


def test_a_list_is_given_up_at_its_first_mistake():
    error = refusal(parts=[{}] * 1000)
    assert described(error) == "parts.0.seconds: Field required"
    assert error.error_count() <= 2


def test_the_first_of_many_mistakes_are_described_and_the_others_counted():
    error = refusal(**{f"key{number}": 0 for number in range(500)})
    text = described(error, source="my.yaml")
    assert text.startswith("my.yaml: key0: Extra inputs are not permitted")
    shown = text.count("my.yaml: ")
    assert text.endswith(f"and {500 - shown} more mistakes")


def test_too_many_mistakes_are_counted_only(monkeypatch):
    monkeypatch.setattr(validation, "MOST_MISTAKES", 5)
    error = refusal(**{f"key{number}": 0 for number in range(6)})
    assert told(error) == "6 mistakes, so it is another kind of file"
