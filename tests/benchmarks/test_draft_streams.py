import importlib.util
import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[2] / "benchmarks" / "draft_streams.py"
    spec = importlib.util.spec_from_file_location("draft_streams_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_step_with_guesses_is_compared_with_a_plain_one(script, monkeypatch) -> None:
    class Drafter:
        def measure_step(self, rows, context):
            return rows

        def measure_streams(self, count, context):
            return 0.5 * count

    monkeypatch.setattr(script, "_seconds", float)
    cost = script.step_cost(Drafter(), 2)
    assert cost == {"median": 4.0, "lower_quartile": 4.0, "upper_quartile": 4.0}


def test_the_page_has_the_committed_result(script) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_table(page, json.loads(script.RESULT.read_bytes())) == page
