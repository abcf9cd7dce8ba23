"""The results page of made-up results, held against writing it by hand."""

import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture
def script():
    return load_script("_results_page")


def entry(name, predicted_s, measured_s, reuse_rate):
    figures = {"mean_acceptance_length": 2.126, "reuse_rate": reuse_rate}
    return {
        "name": name,
        "predicted": {"tpot_s": predicted_s, **figures},
        "measured": {"tpot_s": measured_s, **figures},
        "tpot_error": predicted_s / measured_s - 1,
        "tpot_error_at_anchor": 0.0123,
        "speedup_measured": SPEEDUP,
    }


SPEEDUP = {"value": 1.334, "low": 1.2, "high": 1.5}
DEMO = {
    "platform": {
        "cpu_model": "Some CPU",
        "cores": [0, 1],
        "target": "big",
        "drafter": "small",
        "dtype": "bfloat16",
    },
    "num_prompts": 9,
    "max_new_tokens": 48,
    "schedules": [entry("mirror", 0.019, 0.020, 0.614), entry("plain", 0.030, 0.0299, None)],
    "winner": "mirror",
    "pays": "yes",
    "speedup": SPEEDUP,
    "rounds": "1 text of 18 left the simulated rounds.",
    "notes": ["Other programs were using this machine.", "Two repeats were skipped."],
}


def test_a_demo_has_its_machine_verdict_figures_and_notes(script):
    lines = script.demo(DEMO).splitlines()
    assert lines[0] == ("Some CPU, 2 cores; big with small in bfloat16; 9 prompts, up to 48 new tokens each.")
    assert lines[2].startswith("**Does speculation pay? Yes.** mirror decodes at 1.33× (1.20× to 1.50×)")
    assert lines[6:8] == [
        "| **mirror** | 19.0 | 20.0 | -5.0% | +1.2% | 1.33 (1.20 to 1.50) | 2.13 | 61% |",
        "| plain | 30.0 | 29.9 | +0.3% | +1.2% | 1.33 (1.20 to 1.50) | 2.13 | - |",
    ]
    assert lines[9:] == [f"- {DEMO['rounds']}", *(f"- {note}" for note in DEMO["notes"])]


def test_a_newer_demo_says_what_its_answer_is_about_and_how_many_prompts_were_run(script):
    open_ended = SPEEDUP | {"low": None, "high": None}
    newer = DEMO | {
        "seed": 7,
        "num_recorded_prompts": 30,
        "verdict": "Yes: 1.33× the speed of plain decoding.\nWhy: it is so.",
        "speedup": SPEEDUP | {"scope": {"like_these": SPEEDUP, "these_prompts": SPEEDUP | {"low": 1.3, "high": 1.4}}},
        "by_length": [{"max_new_tokens": 32, **open_ended}, {"max_new_tokens": 256, **SPEEDUP}],
        "turns_at": 256,
        "schedules": [one | {"num_prompts": count} for one, count in zip(DEMO["schedules"], (9, 4), strict=True)],
    }
    lines = script.demo(newer).splitlines()
    assert "30 prompts recorded, drawn by seed 7, and 9 of them run, up to 48 new tokens each." in lines[0]
    assert lines[2] == "**Yes: 1.33× the speed of plain decoding.** Recommended: mirror."
    assert lines[4] == (
        "That is about prompts like these: 1.33× (1.20× to 1.50×). On these very prompts it is 1.33× (1.30× to 1.40×)."
    )
    assert lines[6] == (
        "By length of answers: 32 tokens 1.33×; 256 tokens 1.33× (1.20× to 1.50×). "
        "Speculation is ahead from about 256 tokens on."
    )
    assert [line.split(" | ")[-1] for line in lines[8:12]] == ["prompts |", "--- |", "9 |", "4 |"]


def figures(median, pays="yes", **facts):
    return {
        "pays": pays,
        "error": {"median": median, "worst": 0.2, "of": 11},
        "error_at_anchor": {"median": median / 2, "worst": 0.1, "of": 11},
        "ratio_error": None,
        "interval_coverage": {"covered": 10, "of": 11},
        "rounds_equal": {"equal": 76, "of": 77},
    } | facts


def test_every_demo_has_a_line_and_no_note_is_left_out(script):
    again = figures(0.03, pays="no", actual_coverage={"covered": 8, "of": 11})
    summary = {
        "all": figures(0.05, pays=["yes", "cannot_tell"], recomputed=again | {"pays": ["no", "no"]}),
        "demos": {
            "1": figures(
                0.04,
                actual_coverage={"covered": 9, "of": 11},
                winner_speedup=SPEEDUP,
                notes=["Busy."],
                recomputed=again,
            ),
            "2": figures(0.06, pays="cannot_tell", winner_speedup=None, notes=["Busy.", "Two repeats were skipped."]),
        },
    }
    assert [line.rpartition(" | ")[0] for line in script.series(summary).splitlines()[2:5]] == [
        "| 1 | yes | 1.33 (1.20 to 1.50) | 4.0% (20.0%) | 2.0% (10.0%) |  | 9 of 11 | 10 of 11 | 76 of 77",
        "| 2 | cannot tell |  | 6.0% (20.0%) | 3.0% (10.0%) |  | - | 10 of 11 | 76 of 77",
        "| all |  |  | 5.0% (20.0%) | 2.5% (10.0%) |  | - | 10 of 11 | 76 of 77",
    ]
    assert [line.rpartition(" | ")[2] for line in script.series(summary).splitlines()[2:]] == [
        "no; 3.0% (20.0%); 8 of 11 |",
        "- |",
        "3.0% (20.0%); 8 of 11 |",
        "",
        "- Busy. (demo 1, 2)",
        "- Two repeats were skipped. (demo 2)",
    ]


LARGE = DEMO | {
    "label": "random weights, replayed acceptance.",
    "settings": {"lanes": ["here", "there"], "tokens": 12},
    "num_prompts": 8,
    "accuracy": {"median_error_at_anchor": 0.011, "worst_error_at_anchor": 0.065},
}


def test_a_large_pair_says_first_what_is_not_real_about_it(script):
    lines = script.large_pair(LARGE).splitlines()
    label, verdict = (next(place for place, line in enumerate(lines) if told in line) for told in ("Random", "Yes"))
    assert label < verdict
    assert lines[0] == "big with small in bfloat16, on lanes here, there; 8 prompts, 12 new tokens each."
    assert "1.1% in the median and 6.5% at most" in lines[verdict]


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


def test_other_engines_are_a_line_each_and_the_acceptance_that_reaches_the_fastest_is_said(script):
    text = script.other_engines(PEERS, BREAK_EVEN)
    assert "| llama.cpp, 4-bit | 6.0 (5.0 to 7.0) | 4.00 |" in text
    assert "| ours, plain, openvino, int8 | 12.0 (11.0 to 13.0) | 2.00 |" in text
    assert "acceptance rate of 71%, which is 2.90 tokens a round" in text
    assert "a perfect draft gives 3.10×" in script.other_engines(PEERS, BREAK_EVEN | {"needed": None})
