"""Figures of rounds, held against counting by hand."""

import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("acceptance")


@pytest.fixture
def rounds(script):
    return [
        script.Rounds("qa", accepted=[2, 0, 1], committed=[3, 1, 2]),
        script.Rounds("rag", accepted=[2], committed=[3]),
    ]


def test_figures_of_all_prompts_and_of_every_kind_of_task(script, rounds) -> None:
    found = script._figures(rounds)
    assert found["mean_acceptance_length"] == pytest.approx(9 / 4)
    assert found["mean_acceptance_length_per_request"] == pytest.approx((2 + 3) / 2)
    assert found["conditional_acceptance_rate"] == pytest.approx([3 / 4, 2 / 3])
    assert found["num_rounds"] == 4
    assert found["by_category"]["qa"]["mean_acceptance_length"] == 2
    assert found["by_category"]["qa"]["conditional_acceptance_rate"] == pytest.approx([2 / 3, 1 / 2])
    assert found["by_category"]["rag"]["conditional_acceptance_rate"] == [1, 1]


def test_the_card_has_the_same_figures_with_all_tasks_first(script, rounds) -> None:
    (card,) = script._for_card({"chain": script._figures(rounds)}).values()
    assert list(card) == ["all", "qa", "rag"]
    assert card["all"].mean_acceptance_length == 2.25
    assert card["all"].conditional_acceptance_rate == (0.75, 0.667)
