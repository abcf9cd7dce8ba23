import json

import pytest

from tests.benchmarks.scripts import PAGE, load_script


@pytest.fixture(scope="module")
def script():
    return load_script("draft_streams")


def test_a_step_with_guesses_is_compared_with_a_plain_one(script, monkeypatch) -> None:
    class Drafter:
        def timed_step(self, measurement):
            return measurement.rows * (0.5 if measurement.part == "draft_streams" else 1)

    monkeypatch.setattr(script, "_seconds", float)
    cost = script.step_cost(Drafter(), 2)
    assert cost == {"median": 4.0, "lower_quartile": 4.0, "upper_quartile": 4.0}


def test_the_page_has_the_committed_result(script) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert script.with_table(page, json.loads(script.RESULT.read_bytes())) == page
