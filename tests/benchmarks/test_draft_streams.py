import json

import pytest

from runtime.drafters.shipped import SHIPPED_FOLDER
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import TaskRates, Texts
from tests.benchmarks.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("draft_streams")


def record(*stream_rates, num_texts=4):
    """Texts whose streams are right at some rates, half of them said to be of one kind and half of another."""
    rates = TaskRates(rates=(0.6,) * 8, stream_rates=stream_rates)
    texts = Texts(num_texts=num_texts, num_tokens=60, prompt_length=20)
    return AssumedAcceptance({"qa": rates, "rag": rates}, texts).record


def test_a_step_with_guesses_is_compared_with_a_plain_one(script, monkeypatch) -> None:
    class Drafter:
        def timed_step(self, measurement):
            return measurement.rows * (0.5 if measurement.part == "draft_streams" else 1)

    monkeypatch.setattr(script, "_seconds", float)
    cost = script.step_cost(Drafter(), 2)
    assert cost == {"median": 4.0, "lower_quartile": 4.0, "upper_quartile": 4.0}


def test_guesses_that_are_always_right_leave_as_few_steps_as_there_can_be(script) -> None:
    found = script.figures(record(1.0, 1.0))["tokens_per_draft_step"]
    # the first step of a window guesses nothing, and after it two guesses and a proposal of its own are kept
    assert found["windows of 4"] == {"all": 2.0, "qa": 2.0, "rag": 2.0}
    assert found["windows of 5"]["all"] == pytest.approx(5 / 3, abs=1e-3)
    assert found["windows of 8"]["all"] == 2.0


def test_the_share_of_right_guesses_is_counted_where_those_before_were_right(script) -> None:
    first, second = script.right_guesses(record(0.4, 0.7, num_texts=60))
    assert first == pytest.approx(0.4, abs=0.02)
    assert second == pytest.approx(0.7, abs=0.02)


def test_no_streams_ship_as_long_as_a_step_costs_more_plain_ones_than_it_brings_tokens(script) -> None:
    result = json.loads(script.RESULT.read_bytes())
    own = result["drafters"].values()
    brought = [row["all"] for each in own for row in each["shipped"]["tokens_per_draft_step"].values()]
    assert max(brought) < result["step_cost"]["median"]
    shipped = [json.loads(path.read_bytes()) for path in SHIPPED_FOLDER.glob("*/config.json")]
    assert not any(config.get("streams") for config in shipped)


def test_the_page_says_of_both_ways_to_train_what_was_measured(script) -> None:
    result = json.loads(script.RESULT.read_bytes())
    together, frozen = (result["drafters"][f"smollm2-135m-draft4-{name}"] for name in ("streaming", "streams"))
    assert (together["trained"], frozen["trained"]) == ("with the draft", "after the draft")
    for prompts in ("shipped", "spec_bench_dev"):
        ours, theirs = together[prompts], frozen[prompts]
        assert ours["right_guesses"][0] > theirs["right_guesses"][0]
        for windows, length in theirs["mean_acceptance_length"].items():
            assert 0.96 * length < ours["mean_acceptance_length"][windows] < length
