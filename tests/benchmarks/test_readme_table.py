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
    "verdict": "On this machine mirror wins.\n",
    "rounds": "1 text of 18 left the simulated rounds.",
    "notes": ["Other programs were using this machine.", "Of the repeats two were left out."],
}


def test_figures_are_rounded_and_the_winner_is_bold(readme_table):
    lines = readme_table.results(DEMO).splitlines()
    assert lines[:2] == [
        "Some CPU, 2 cores, torch 2.6;",
        "big with small, bfloat16; 9 prompts, up to 48 new tokens each.",
    ]
    assert lines[3] == "| schedule | ms/token predicted | measured | error | tokens per round | hits |"
    assert lines[5] == "| **mirror** | 19.0 | 20.0 | -5.0% | 2.13 | 61% |"
    assert lines[6] == "| plain | 30.0 | 29.9 | +0.3% | 2.13 | - |"
    assert "On this machine mirror wins." in lines


def test_all_that_a_result_says_of_its_rounds_and_its_circumstances_is_shown(readme_table):
    lines = readme_table.results(DEMO).splitlines()
    place = lines.index(f"- {DEMO['rounds']}")
    assert lines[place + 1 : place + 3] == [f"- {note}" for note in DEMO["notes"]]


def test_errors_at_the_anchors_speed_and_measured_speedups_are_shown_where_there_are_any(readme_table):
    new = {"tpot_error_at_anchor": 0.0123, "speedup_measured": {"value": 1.5, "low": 1.382, "high": 1.618}}
    (line,) = (
        line
        for line in readme_table.results(DEMO | {"schedules": [DEMO["schedules"][0] | new]}).splitlines()
        if line.startswith("| **mirror**")
    )
    assert line == "| **mirror** | 19.0 | 20.0 | -5.0% | +1.2% | 1.50 (1.38 to 1.62) | 2.13 | 61% |"


def figures(median, pays="yes", **facts):
    return {
        "pays": pays,
        "error": {"median": median, "worst": 0.2, "of": 11},
        "error_at_anchor": {"median": median / 2, "worst": 0.1, "of": 11},
        "ratio_error": None,
        "interval_coverage": {"covered": 10, "of": 11},
        "rounds_equal": {"equal": 76, "of": 77},
    } | facts


def test_every_demo_has_a_line_and_no_note_is_left_out(readme_table):
    speedup = {"value": 1.334, "low": 1.2, "high": 1.5}
    summary = {
        "all": figures(0.05, pays=["yes", "unclear"]),
        "demos": {
            "1": figures(0.04, winner_speedup=speedup, notes=["Busy."]),
            "2": figures(0.06, pays="unclear", winner_speedup=None, notes=["Busy.", "Two repeats were left out."]),
        },
    }
    text = readme_table.all_demos(summary)
    assert text.startswith("All 2 demos of a series, none left out")
    assert [line for line in text.splitlines() if line.startswith(("| 1", "| 2", "| all"))] == [
        "| 1 | yes | 1.33 (1.20 to 1.50) | 4.0% (20.0%) | 2.0% (10.0%) |  | 10 of 11 | 76 of 77 |",
        "| 2 | unclear |  | 6.0% (20.0%) | 3.0% (10.0%) |  | 10 of 11 | 76 of 77 |",
        "| all |  |  | 5.0% (20.0%) | 2.5% (10.0%) |  | 10 of 11 | 76 of 77 |",
    ]
    assert "- Busy. (demo 1, 2)\n- Two repeats were left out. (demo 2)\n" in text


def test_the_first_of_the_committed_demos_is_shown_in_full_and_all_in_a_line(readme_table, tmp_path, monkeypatch):
    monkeypatch.setattr(readme_table, "RESULTS", tmp_path)
    first = DEMO | {"verdict": "The first of two."}
    (tmp_path / "demos" / "1").mkdir(parents=True)
    (tmp_path / "demos" / "1" / "demo.json").write_text(json.dumps(first))
    summary = {"all": figures(0.05), "demos": {"1": figures(0.05, notes=[])}}
    for name in ("demos", "demos-torch"):
        (tmp_path / f"{name}.json").write_text(json.dumps(summary))
    (tmp_path / "large-pair.json").write_text(json.dumps(LARGE))
    (tmp_path / "peers.json").write_text(json.dumps(PEERS))
    (tmp_path / "peers-break-even.json").write_text(json.dumps(BREAK_EVEN))
    text = readme_table.committed()
    assert text.startswith(readme_table.results(first) + readme_table.all_demos(summary))
    shown = readme_table.torch_demos(summary), readme_table.large_pair(LARGE)
    assert text.endswith("".join(shown) + readme_table.other_engines(PEERS, BREAK_EVEN))


def test_the_series_on_lanes_of_torch_is_a_line_for_each(readme_table):
    text = readme_table.torch_demos({"all": figures(0.05), "demos": {"1": figures(0.04), "2": figures(0.06)}})
    assert "2 times in a row, none left out" in text
    assert [line[:7] for line in text.splitlines() if line.startswith(("| 1", "| 2", "| all"))] == [
        "| 1 | y",
        "| 2 | y",
        "| all |",
    ]


def test_only_what_lies_between_the_markers_changes(readme_table):
    readme = f"before\n{readme_table.START}old\n{readme_table.END}\nafter\n"
    assert readme_table.with_results(readme, "new\n") == f"before\n{readme_table.START}new\n{readme_table.END}\nafter\n"


def test_the_readme_shows_the_committed_results_and_nothing_else(readme_table):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_table.with_results(readme, readme_table.committed()) == readme


LARGE = {
    "label": "random weights, replayed acceptance.",
    "platform": DEMO["platform"],
    "settings": {"lanes": ["here", "there"], "tokens": 12},
    "num_prompts": 8,
    "schedules": DEMO["schedules"],
    "verdict_measured": "Yes.\n",
    "accuracy": {"median_error_at_anchor": 0.011, "worst_error_at_anchor": 0.065},
}


def test_a_large_pair_says_first_what_is_not_real_about_it(readme_table):
    lines = readme_table.large_pair(LARGE).splitlines()
    assert lines.index("Random weights, replayed acceptance.") < lines.index("Yes.")
    assert "big with small, bfloat16, on lanes here, there;" in lines
    assert "| mirror | 19.0 | 20.0 | -5.0% | 2.13 | 61% |" in lines
    assert "At the anchors' speed errors are 1.1% in the median and 6.5% at most." in lines


def contender(median):
    return {
        "tpot_s": {"median": median, "lower_quartile": median - 1e-3, "upper_quartile": median + 1e-3},
        "times_as_fast_as_transformers": {"median": 0.024 / median},
    }


PEERS = {
    "num_rounds": 20,
    "max_new_tokens": 32,
    "contenders": {
        "transformers, bfloat16": contender(0.024),
        "llama.cpp, 4-bit": contender(0.006),
        "plain, openvino, int8": contender(0.012),
    },
}
BREAK_EVEN = {
    "engine": "llama.cpp, 4-bit",
    "times_our_plain": 2.0,
    "needed": {"rate": 0.71, "gain": 2.0, "mean_acceptance_length": 2.9},
    "gain_if_all_is_accepted": 3.1,
    "recorded": {"gain": 1.25, "mean_acceptance_length": 1.9},
}


def test_other_engines_are_a_line_each_and_what_it_takes_to_reach_the_fastest_is_said(readme_table):
    text = readme_table.other_engines(PEERS, BREAK_EVEN)
    assert "| llama.cpp, 4-bit | 6.0 (5.0 to 7.0) | 4.00 |" in text
    assert "| ours, plain, openvino, int8 | 12.0 (11.0 to 13.0) | 2.00 |" in text
    assert "need 2.00× their plain speed" in text
    assert "where 71% of what is drafted at any place is accepted, 2.90 tokens a round" in text
    assert "gives 1.25× at most, with 1.90 tokens a round" in text


def test_where_no_draft_suffices_that_is_said(readme_table):
    text = readme_table.other_engines(PEERS, BREAK_EVEN | {"needed": None})
    assert "3.10× if everything is accepted, so no acceptance suffices" in text
