"""Random questions are answered by the laws, or refused in words."""

import pytest

from tests.planner.platform_plan.asked_at_random import ANSWERED, REFUSED, outcome


@pytest.mark.parametrize("seed", range(40))
def test_a_random_question_is_answered_by_the_laws_or_refused_in_words(seed, tmp_path):
    assert outcome(seed, tmp_path) in (ANSWERED, REFUSED)
