"""Words are explained where they first stand, once, whatever else the text holds."""

import pytest
from markupsafe import escape

from planner.report.glossary import EXPLAINED_IN_PLACE, GLOSSARY, Explainer


def meaning(word):
    return f'<span class="meaning" hidden> ({escape(GLOSSARY[word])})</span>'


def test_a_word_is_a_button_that_is_followed_by_its_meaning():
    made = Explainer().explained("a root of it")
    button = '<button type="button" class="term" aria-expanded="false">root</button>'
    assert made == f"a {button}{meaning('root')} of it"


@pytest.mark.parametrize("word", EXPLAINED_IN_PLACE)
def test_each_word_is_explained_at_its_first_use_only(word):
    explained = Explainer().explained
    assert meaning(word) in explained(f"one {word}, the other {word}")
    assert explained(f"one {word} more") == f"one {word} more"


@pytest.mark.parametrize(
    ("text", "word"), [("Roots", "root"), ("4 branches", "branch"), ("misses", "miss"), ("Pooled", "pooled")]
)
def test_plurals_and_capitals_are_the_same_word(text, word):
    assert meaning(word) in Explainer().explained(text)


def test_the_longest_word_is_the_one_that_is_meant():
    explained = Explainer().explained
    made = explained("reading exit features")
    assert meaning("exit features") in made
    assert meaning("exit") not in made
    assert meaning("exit") in explained("up to the exit")


@pytest.mark.parametrize("text", ["white", "exited", "uprooted", "windowed", "splitting"])
def test_parts_of_words_are_left_alone(text):
    assert Explainer().explained(text) == text


def test_all_else_is_escaped():
    assert Explainer().explained('<b>"hit"</b>').startswith("&lt;b&gt;")
