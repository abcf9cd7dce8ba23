"""A few of the questions that `benchmarks/plan_questions.py` asks by the thousand."""

import pytest

from benchmarks._plan_questions.outcome import ANSWERED, REFUSED, outcome


@pytest.mark.parametrize("seed", range(40))
def test_a_random_question_is_answered_by_the_laws_or_refused_in_words(seed, tmp_path):
    assert outcome(seed, tmp_path) in (ANSWERED, REFUSED)
