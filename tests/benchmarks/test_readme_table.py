import json
from pathlib import Path

import pytest

from tests.benchmarks.scripts import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture
def readme_table():
    return load_script("readme_table")


def entry(name, predicted_s, measured_s, reuse_rate):
    figures = {"mean_acceptance_length": 2.126, "reuse_rate": reuse_rate}
    return {
        "name": name,
        "predicted": {"tpot_s": predicted_s, **figures},
        "measured": {"tpot_s": measured_s, **figures},
        "tpot_error": predicted_s / measured_s - 1,
    }


DEMO = {
    "platform": {
        "cpu_model": "Some CPU",
        "cores": [0, 1],
        "torch": "2.6",
        "target": "big",
        "drafter": "small",
        "dtype": "bfloat16",
    },
    "num_prompts": 9,
    "max_new_tokens": 48,
    "schedules": [entry("mirror", 0.019, 0.020, 0.614), entry("plain", 0.030, 0.0299, None)],
    "winner": "mirror",
    "verdict": "On this machine mirror wins.",
}


def test_figures_are_rounded_and_the_winner_is_bold(readme_table):
    lines = readme_table.results(DEMO).splitlines()
    assert lines[:2] == [
        "Some CPU, 2 cores, torch 2.6;",
        "big with small, bfloat16; 9 prompts, up to 48 new tokens each.",
    ]
    assert lines[5] == "| **mirror** | 19.0 | 20.0 | -5.0% | 2.13 | 61% |"
    assert lines[6] == "| plain | 30.0 | 29.9 | +0.3% | 2.13 | - |"
    assert "On this machine mirror wins." in lines


def test_only_what_lies_between_the_markers_changes(readme_table):
    readme = f"before\n{readme_table.START}old\n{readme_table.END}\nafter\n"
    assert readme_table.with_results(readme, "new\n") == f"before\n{readme_table.START}new\n{readme_table.END}\nafter\n"


def test_the_readme_shows_the_committed_results_and_nothing_else(readme_table):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if readme_table.COMMITTED.exists():
        section = readme_table.results(json.loads(readme_table.COMMITTED.read_text(encoding="utf-8")))
        assert readme_table.with_results(readme, section) == readme
    else:
        shown = readme.split(readme_table.START)[1].split(readme_table.END)[0]
        assert "|" not in shown, "README.md shows a table, and benchmarks/results/demo.json is not there to back it"
        assert "benchmarks/readme_table.py" in shown
