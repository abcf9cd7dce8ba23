"""Committed results speak of machines by their properties, never by their paths."""

import re
from pathlib import Path

import pytest

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_path_of_a_machine_is_in_a_committed_result(path):
    absolute = re.findall(r'"(?:/|~|[A-Za-z]:\\)[^"\n]*"', path.read_text(encoding="utf-8"))
    assert absolute == []
