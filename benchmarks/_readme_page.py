"""The results that README.md quotes, made from the committed result files alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from _common import RESULTS, read_result
from _held_out_rows import figures
from _results_page import ANSWERS, held_out_ends, held_out_line, is_ours, table, times

from hwprofiles.profile import load_profile
from mirrorsd.pair_on_platform import plan_pair
from planner.wording import listing

_CELLS: Final = {
    "short-32, quiet": "short, up to 32 tokens",
    "short-256, quiet": "short, up to 256 tokens",
    "short-1024, quiet": "short, up to 1,024 tokens",
    "long-64, quiet": "over 300 tokens, up to 64",
    "short-32, busy": "short, up to 32 tokens, a core busy",
    "short-256, busy": "short, up to 256 tokens, a core busy",
}


def headline() -> dict[str, str]:
    """Return the sentences of README.md that quote results, by marker."""
    found, engines = read_result(RESULTS / "demos.json"), read_result(RESULTS / "peers.json")["contenders"]
    whole, leads = found["all"], [one["speedup"]["value"] for one in found["demos"].values()]
    answers = [answer.replace("_", " ") for answer in whole["pays"]]
    said = f"All answer {answers[0]}" if len(set(answers)) == 1 else f"They answer {listing(answers)}"
    without = list(filter(None, (one["recomputed"]["without_repeating"] for one in found["demos"].values())))
    unsure = sum(one["outcome"] == "cannot tell" for one in without)
    told = f"{unsure} of {len(without)} demos cannot tell" if unsure else f"every demo still answers {answers[0]}"
    fewer = [one["value"] for one in without]
    again = whole["recomputed"]["error"]
    rounds, covered, corrected = (whole[name] for name in ("rounds_equal", "actual_coverage", "interval_coverage"))
    ours = min(one["tpot_s"]["median"] for name, one in engines.items() if is_ours(name))
    theirs = engines["llama.cpp, 4-bit"]["tpot_s"]["median"]
    lengths = " or ".join(map(str, sorted({one["max_new_tokens"] for one in found["demos"].values()})))
    lines = (
        (
            f"- Over {whole['num_demos']} demos in a row the median error of a predicted time per token is "
            f"{whole['error']['median']:.1%} (worst {whole['error']['worst']:.1%}); today's simulator makes it "
            f"{again['median']:.1%} ({again['worst']:.1%})."
        ),
        (
            f"- {rounds['equal']} of {rounds['of']} sequences went through exactly the simulated rounds (a round is "
            "one draft and its verification)."
        ),
        (
            f"- {covered['covered']} of {covered['of']} intervals of 90 % hold the measured time, and "
            f"{corrected['covered']} the time with the machine's own changes of speed taken out."
        ),
        (
            f"- Does speculation pay, for answers of up to {lengths} tokens? {said}: {min(leads):.2f}× to "
            f"{max(leads):.2f}× the speed of plain decoding by prompt lookup (rounds are recorded, the cost of one is "
            "measured). Without answers that repeat themselves, which are easy to draft, today's fit of these runs "
            f"makes it {min(fewer):.2f}× to {max(fewer):.2f}× ({told})."
        ),
        f"- llama.cpp (4-bit) is {ours / theirs:.1f} times as fast as the fastest schedule here (int8).",
    )
    return {"headline": "".join(f"{line}\n" for line in lines)}


def matrix() -> dict[str, str]:
    """Return README.md's table of how good predictions of other prompts are, by marker."""
    result = read_result(RESULTS / "held-out.json")
    found, rows = result["summary"], result["rows"]
    widened = {
        name for name in {row["profile"] for row in rows} if load_profile(RESULTS / "held-out" / name).pace_error
    }
    since = figures([row for row in rows if row["profile"] in widened and row["same_day"]])
    columns = ("prompts", "schedule runs", "error", "intervals", "intervals of ratios")
    told = [held_out_line(name, found["by_cell"][key]) for key, name in _CELLS.items()]
    lines = [
        {"prompts, answers": one["cell"]} | {column: one[column] for column in columns}
        for one in (*told, *held_out_ends(result))
    ]
    ratios, error, faster = (found["all"][name] for name in ("ratio_coverage", "speedup_error", "speedup_coverage"))
    held, own = since["interval_coverage"], since["ratio_coverage"]
    before = {name: ratios[name] - own[name] for name in ratios}
    least, most = error["by_calibration"]
    sentences = (
        f"Intervals of ratios were too narrow at first ({before['covered']} of {before['of']} held) and were widened. "
        f"Since then {held['covered']} of {held['of']} intervals of times hold, and {own['covered']} of {own['of']} of "
        f"ratios. Predicted speed-ups over plain decoding are {_sided(error['mean'])} on average ({least:+.1%} to "
        f"{most:+.1%} by calibration); {faster['covered']} of {faster['of']} of their intervals hold.\n\n"
        "Since 30 November 2026 the machine's present speed is timed before the runs, and predictions are for that: "
        f"{_by_pace(found['all'])}, and {_by_pace(found['profile_of_another_day'])} by a profile of another day."
    )
    return {"matrix": f"{table(lines)}\n\n{sentences}\n"}


def _by_pace(found: Mapping[str, Any]) -> str:
    """Say the median error with the machine's present speed, without it, and of how many times."""
    paced, as_calibrated = found["with_pace"], found["as_calibrated"]
    return f"error {paced['median']:.1%} instead of {as_calibrated['median']:.1%} over {paced['of']} times"


def _sided(mean: float) -> str:
    return f"{abs(mean):.1%} too {'high' if mean > 0 else 'low'}"


def plan() -> dict[str, str]:
    """Return the answer of README.md's example of `mirrorsd plan`, by marker."""
    found = plan_pair("qwen3-14b", "qwen3-0.6b", "lunar-lake")
    assert found.comparison is not None, "the example drafts"
    assert found.needed is not None, "the example breaks even somewhere"
    assert found.drafting is not None, "the example drafts"
    pair, length = found.drafting.pair, found.drafting.schedule.num_speculative_tokens
    speedup = {"value": found.comparison.value, "low": found.comparison.low, "high": found.comparison.high}
    answer = f"**{ANSWERS[found.pays]}: {times(speedup)} the speed of plain decoding.**"
    where = f"Target on: {pair.target}. Draft model on: {pair.draft}. Draft length: {length} tokens."
    break_even = f"Break-even acceptance: {found.needed.at:.0%}."
    guessed = sum(one.status == "guessed" for one in found.assumptions)
    basis = (
        f"Weights: {found.question.target.weights}. Interval: 90%. "
        f"Acceptance: assumed, {found.needed.now:.0%} (`--acceptance` accepts yours). "
        f"{guessed} of {len(found.assumptions)} numbers are guessed (`--explain`)."
    )
    return {"plan": f"> {answer}\n> {where} {break_even}\n> {basis}\n"}
