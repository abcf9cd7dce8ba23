"""The results of docs/results.md and of README.md, made from the committed result files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import verdict_power
from _common import RESULTS, markdown_table, read_result
from _held_out_rows import figures

from hwprofiles.profile import load_profile
from mirrorsd.pair_on_platform import plan_pair
from planner.wording import counted, listing

_CELLS: Final = {
    "short-32, quiet": "short, up to 32 tokens",
    "short-256, quiet": "short, up to 256 tokens",
    "short-1024, quiet": "short, up to 1,024 tokens",
    "long-64, quiet": "300 to 1,500 tokens, up to 64",
    "short-32, busy": "short, up to 32 tokens, a core busy",
    "short-256, busy": "short, up to 256 tokens, a core busy",
}
_ANSWERS: Final = {"yes": "Yes", "no": "No", "cannot_tell": "Cannot tell"}

Json = Mapping[str, Any]


def sections() -> dict[str, str]:
    """Return every section of docs/results.md, by marker."""
    return {
        "demo": demo(read_result(RESULTS / "demos" / "1" / "demo.json")),
        "demos": series(read_result(RESULTS / "demos.json")),
        "demos-avx2": series(read_result(RESULTS / "demos-avx2.json")),
        "demos-torch": series(read_result(RESULTS / "demos-torch.json")),
        "held-out": held_out(read_result(RESULTS / "held-out.json")),
        "power": "\n".join(verdict_power.summary(read_result(RESULTS / "verdict-power.json"))) + "\n",
        "large-pair": large_pair(read_result(RESULTS / "large-pair.json")),
        "engines": other_engines(read_result(RESULTS / "peers.json"), read_result(RESULTS / "peers-break-even.json")),
    }


def headline() -> dict[str, str]:
    """Return the sentences of README.md that quote results, by marker."""
    found, engines = read_result(RESULTS / "demos.json"), read_result(RESULTS / "peers.json")["contenders"]
    whole, leads = found["all"], [one["speedup"]["value"] for one in found["demos"].values()]
    answers = [answer.replace("_", " ") for answer in whole["pays"]]
    said = f"All answer {answers[0]}" if len(set(answers)) == 1 else f"They answer {listing(answers)}"
    without = list(filter(None, (one["recomputed"]["without_repeating"] for one in found["demos"].values())))
    unsure = sum(one["outcome"] == "cannot tell" for one in without)
    fewer = [one["value"] for one in without]
    again = whole["recomputed"]["error"]
    rounds, covered, corrected = (whole[name] for name in ("rounds_equal", "actual_coverage", "interval_coverage"))
    ours = min(one["tpot_s"]["median"] for name, one in engines.items() if _is_ours(name))
    theirs = engines["llama.cpp, 4-bit"]["tpot_s"]["median"]
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
            f"{corrected['covered']} the time corrected for the machine's own change of speed."
        ),
        (
            f"- Does speculation pay, for answers of up to 256 tokens? {said}: {min(leads):.2f}× to {max(leads):.2f}× "
            f"the speed of plain decoding, by prompt lookup. Without the prompts whose answers repeat themselves it is "
            f"{min(fewer):.2f}× to {max(fewer):.2f}×, and {unsure} of {len(without)} demos cannot tell."
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
    since = figures([row for row in rows if row["profile"] in widened])
    cells = {name: found["by_cell"][key] for key, name in _CELLS.items()} | {"all": found["all"]}
    columns = ("schedule runs", "error", "intervals", "intervals of ratios")
    lines = [
        {"prompts, answers": name} | {column: _held_out_line(name, one)[column] for column in columns}
        for name, one in cells.items()
    ]
    ratios, mean = found["all"]["ratio_coverage"], found["all"]["speedup_error"]["mean"]
    times, own = since["interval_coverage"], since["ratio_coverage"]
    before = {name: ratios[name] - own[name] for name in ratios}
    told = (
        "Predictions are shown as they were made. Intervals of the first series were too narrow: "
        f"{before['covered']} of {before['of']} ratios were inside. They have been wider since: {times['covered']} of "
        f"{times['of']} times and {own['covered']} of {own['of']} ratios are inside. Predicted "
        f"speed-ups are {abs(mean):.0%} too {'high' if mean > 0 else 'low'} on average."
    )
    return {"matrix": f"{_table(lines)}\n\n{told}\n"}


def plan() -> dict[str, str]:
    """Return the answer of README.md's example of `mirrorsd plan`, by marker."""
    found = plan_pair("qwen3-14b", "qwen3-0.6b", "lunar-lake")
    assert found.comparison is not None, "the example drafts"
    assert found.needed is not None, "the example breaks even somewhere"
    assert found.drafting is not None, "the example drafts"
    pair, length = found.drafting.pair, found.drafting.schedule.num_speculative_tokens
    speedup = {"value": found.comparison.value, "low": found.comparison.low, "high": found.comparison.high}
    answer = f"**{_ANSWERS[found.pays]}: {_times(speedup)} the speed of plain decoding.**"
    where = f"Target on: {pair.target}. Draft model on: {pair.draft}. Draft length: {length} tokens."
    break_even = f"Break-even acceptance: {found.needed.at:.0%}."
    guessed = sum(one.status == "guessed" for one in found.assumptions)
    basis = (
        f"Interval: 90%. Acceptance: assumed, {found.needed.now:.0%} (`--acceptance` takes yours). "
        f"{guessed} of {len(found.assumptions)} numbers are guessed (`--explain`)."
    )
    return {"plan": f"> {answer}\n> {where} {break_even}\n> {basis}\n"}


def demo(result: Json) -> str:
    """Return one demo in full: machine, verdict, table, rounds and notes."""
    rows = [_row(entry, is_winner=entry["name"] == result["winner"]) for entry in result["schedules"]]
    host = result["platform"]
    paragraphs = [
        (
            f"{host['cpu_model']}, {len(host['cores'])} cores; {host['target']} with {host['drafter']} "
            f"in {host['dtype']}; {result['num_recorded_prompts']} prompts recorded, drawn by seed {result['seed']}, "
            f"and {result['num_prompts']} of them run, up to {result['max_new_tokens']} new tokens each."
        ),
        *_answers(result),
        _table(rows),
        _listed([result["rounds"], *result["notes"]]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _answers(result: Json) -> Iterator[str]:
    """Return the answer, what it is about, and the answer by length of answers."""
    scope, lengths, turn = result["speedup"]["scope"], result["by_length"], result["turns_at"]
    recommended = f" Recommended: {result['winner']}." if result["winner"] else ""
    yield f"**{result['verdict'].splitlines()[0]}**{recommended}"
    yield (
        f"That is about prompts like these: {_times(scope['like_these'])}. On these very prompts it is "
        f"{_times(scope['these_prompts'])}."
    )
    side = "ahead" if lengths[-1]["value"] > 1 else "behind"
    turns = "" if turn is None else f" Speculation is {side} from about {turn:,} tokens on."
    told = "; ".join(f"{one['max_new_tokens']:,} tokens {_times(one)}" for one in lengths)
    yield f"By length of answers: {told}.{turns}"


def series(summary: Json) -> str:
    """Return a line for every demo of a series and one for all together, and their notes."""
    demos = summary["demos"]
    rows = [_line(name, one) for name, one in demos.items()]
    rows.append(_line("all", summary["all"] | {"pays": None}))
    notes: dict[str, list[str]] = {}
    for name, one in demos.items():
        for note in one["notes"]:
            notes.setdefault(note, []).append(name)
    said = [f"{note} (demo {', '.join(names)})" for note, names in notes.items()]
    return "\n\n".join([_table(rows), *([_listed(said)] if said else [])]) + "\n"


def held_out(result: Json) -> str:
    """Return how good predictions of other prompts and lengths are: by cell, quiet and busy, and all together."""
    found, rows = result["summary"], result["rows"]
    machines = sorted(
        {f"{row['machine']['cpu_model']} ({row['machine']['instruction_sets']}), {row['date']}" for row in rows}
    )
    kinds = ("by_cell", "by_use", "by_machine")
    told = [_held_out_line(name, one) for kind in kinds for name, one in found[kind].items()]
    return (
        "\n\n".join(
            [
                f"{counted(found['num_runs'], 'run')}, on {listing(machines)}.",
                _table([*told, _held_out_line("all", found["all"])]),
            ]
        )
        + "\n"
    )


def _held_out_line(name: str, figures: Json) -> dict[str, str]:
    rounds, mean = figures["rounds_equal"], figures["speedup_error"]
    return {
        "cell": name,
        "schedule runs": str(figures["num_rows"]),
        "error": _spread(figures["error"]),
        "intervals": _share(figures["interval_coverage"]),
        "intervals of ratios": _share(figures["ratio_coverage"]),
        "speed-up, mean error": "-" if mean is None else f"{mean['mean']:+.1%}",
        "equal rounds": f"{rounds['equal']} of {rounds['of']}",
    }


def large_pair(result: Json) -> str:
    """Return the large pair: first what is not real about it, then the verdict and the table."""
    host, settings, accuracy = result["platform"], result["settings"], result["accuracy"]
    paragraphs = [
        (
            f"{host['target']} with {host['drafter']} in {host['dtype']}, on lanes {', '.join(settings['lanes'])}; "
            f"{result['num_prompts']} prompts, {settings['tokens']} new tokens each."
        ),
        f"{result['label'][0].upper()}{result['label'][1:]}",
        (
            f"**Does speculation pay? {_ANSWERS[result['pays']]}:** {_times(result['speedup'])} the speed of plain "
            f"decoding. Errors after the correction are {accuracy['median_error_at_anchor']:.1%} in the median and "
            f"{accuracy['worst_error_at_anchor']:.1%} at most."
        ),
        _table([_row(entry, is_winner=False) for entry in result["schedules"]]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def other_engines(peers: Json, break_even: Json) -> str:
    """Return the times of other engines, and the acceptance that would make our lanes as fast as the fastest."""
    rows = [
        {
            "engine": f"{'ours, ' if _is_ours(name) else ''}{name}",
            "ms/token": "{median:.1f} ({lower_quartile:.1f} to {upper_quartile:.1f})".format(
                **{key: 1e3 * value for key, value in one["tpot_s"].items()}
            ),
            "times transformers": f"{one['times_as_fast_as_transformers']['median']:.2f}",
        }
        for name, one in peers["contenders"].items()
    ]
    counts = f"{peers['num_rounds']} rounds in turn, {peers['max_new_tokens']} new tokens"
    paragraphs = [
        f"The embedded model on both cores, {counts} each, medians and quartiles.",
        _table(rows),
        _needed(break_even),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _needed(break_even: Json) -> str:
    needed, recorded = break_even["needed"], break_even["recorded"]
    times = break_even["times_our_plain"]
    wanted = f"To match {break_even['engine']}, our lanes in int8 need {times:.2f}× their plain speed."
    now = (
        f"The recorded acceptance gives at most {recorded['gain']:.2f}×, with "
        f"{recorded['mean_acceptance_length']:.2f} tokens a round."
    )
    if needed is None:
        perfect = break_even["gain_if_all_is_accepted"]
        return f"{wanted} No acceptance suffices: a perfect draft gives {perfect:.2f}×. {now}"
    return (
        f"{wanted} By prediction speculation with this draft model reaches that at an acceptance rate of "
        f"{needed['rate']:.0%}, which is {needed['mean_acceptance_length']:.2f} tokens a round. {now}"
    )


def _is_ours(name: str) -> bool:
    return name.startswith(("plain", "schedule"))


def _row(entry: Json, *, is_winner: bool) -> dict[str, str]:
    return dict(_cells(entry, name=f"**{entry['name']}**" if is_winner else entry["name"]))


def _cells(entry: Json, *, name: str) -> Iterator[tuple[str, str]]:
    predicted, measured = entry["predicted"], entry["measured"]
    yield "schedule", name
    yield "ms/token predicted", f"{predicted['tpot_s'] * 1e3:.1f}"
    yield "measured", f"{measured['tpot_s'] * 1e3:.1f}"
    yield "error", f"{entry['tpot_error']:+.1%}"
    yield "corrected error", f"{entry['tpot_error_at_anchor']:+.1%}"
    yield "speed-up", _interval(entry["speedup_measured"])
    yield "tokens per round", f"{measured['mean_acceptance_length']:.2f}"
    yield "hits", "-" if measured["reuse_rate"] is None else f"{measured['reuse_rate']:.0%}"
    if "num_prompts" in entry:
        yield "prompts", str(entry["num_prompts"])


def _share(coverage: Json | None) -> str:
    return "-" if coverage is None else f"{coverage['covered']} of {coverage['of']}"


def _line(name: str, figures: Json) -> dict[str, str]:
    rounds = figures["rounds_equal"]
    return {
        "demo": name,
        "pays": (figures["pays"] or "").replace("_", " "),
        "speed-up": _interval(_speedup(figures)),
        "error": _spread(figures["error"]),
        "corrected error": _spread(figures["error_at_anchor"]),
        "error of ratios": _spread(figures["ratio_error"]),
        "intervals": _share(figures.get("actual_coverage")),
        "corrected intervals": _share(figures["interval_coverage"]),
        "equal rounds": f"{rounds['equal']} of {rounds['of']}",
        "recomputed": _recomputed(figures.get("recomputed")),
    }


def _speedup(figures: Json) -> Json | None:
    """Return what the answer says of prompts like these; of a demo without scopes, what its winner measured."""
    speedup = figures.get("speedup")
    found: Json | None = speedup if speedup and "scope" in speedup else figures.get("winner_speedup")
    return found


def _recomputed(figures: Json | None) -> str:
    """Return the error, the intervals and the answer by today's simulator; nothing where nothing was kept for it."""
    if figures is None:
        return "-"
    answer = f"{figures['pays'].replace('_', ' ')}; " if isinstance(figures["pays"], str) else ""
    return f"{answer}{_spread(figures['error'])}; {_share(figures['actual_coverage'])}"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows]).rstrip()


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _times(found: Json) -> str:
    if found["low"] is None:
        return f"{found['value']:.2f}×"
    return f"{found['value']:.2f}× ({found['low']:.2f}× to {found['high']:.2f}×)"


def _interval(found: Json | None) -> str:
    return "" if found is None else _times(found).replace("×", "")


def _spread(errors: Json | None) -> str:
    return "" if errors is None else f"{errors['median']:.1%} ({errors['worst']:.1%})"
