"""The results of docs/results.md, made from the committed result files alone."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import verdict_power
from _common import RESULTS, markdown_table, read_result
from _demo_machine import SLOW
from _held_out_rows import is_measured, use_of

from planner.wording import counted, listing

ANSWERS: Final = {"yes": "Yes", "no": "No", "cannot_tell": "Cannot tell"}

_CORRECTIONS: Final = {
    "level_by_rows": "a level of its own for several rows",
    "first_step": "first steps of a draft",
    "exit": "an early exit",
    "features": "passes that return hidden states",
}
_DROPPED: Final = {
    "step_anchor": "anchors of a draft's own steps",
    "levels_by_threads": "levels by threads",
    "pace_spread": "the spread of paces",
    "draft_round": "rounds with a draft",
}

Json = Mapping[str, Any]


def sections() -> dict[str, str]:
    """Return every section of docs/results.md, by marker."""
    return {
        "demo": demo(RESULTS / "demos" / "1"),
        "demos": series(read_result(RESULTS / "demos.json")),
        "demos-avx2": series(read_result(RESULTS / "demos-avx2.json")),
        "demos-amx": series(read_result(RESULTS / "demos-amx.json")),
        "demos-torch": series(read_result(RESULTS / "demos-torch.json")),
        "held-out": held_out(read_result(RESULTS / "held-out.json")),
        "rounds": rounds(
            {
                "Zen 4": read_result(RESULTS / "demos.json"),
                "Zen 3": read_result(RESULTS / "demos-avx2.json"),
                "Xeon": read_result(RESULTS / "demos-amx.json"),
            }
        ),
        "power": verdict_power.summary(read_result(RESULTS / "verdict-power.json")),
        "corrections": corrections(read_result(RESULTS / "ablations.json")),
        "large-pair": large_pair(read_result(RESULTS / "large-pair.json")),
        "engines": other_engines(read_result(RESULTS / "peers.json"), read_result(RESULTS / "peers-break-even.json")),
    }


def demo(folder: Path) -> str:
    """Return one demo in full: machine, verdict, table, rounds and notes."""
    result = read_result(folder / "demo.json")
    rows, host = schedule_rows(result), result["platform"]
    paragraphs = [
        (
            f"{host['cpu_model']}, {len(host['cores'])} cores; {host['target']} with {host['drafter']} "
            f"in {host['dtype']}; {result['num_recorded_prompts']} prompts recorded, drawn by seed {result['seed']}, "
            f"and {result['num_prompts']} of them run: {_lengths(folder / result['files']['runs'])}."
        ),
        *_answers(result),
        table(rows),
        _listed([result["rounds"], *result["notes"]]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _lengths(path: Path) -> str:
    """Return at how many tokens answers were cut, and how many ended before, from a file of runs."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    cuts, tokens = found["cuts"], [run["tokens"] for run in max(found["runs"], key=len)]
    told = [f"{count} for up to {cut}" for cut, count in sorted(Counter(cuts).items())]
    ended = sum(len(own) < cut for own, cut in zip(tokens, cuts, strict=True))
    return f"{listing(told)} new tokens; {ended} of these answers ended earlier"


def _answers(result: Json) -> Iterator[str]:
    """Return the answer, what it is about, and the answer by length of answers."""
    scope, lengths, turn = result["speedup"]["scope"], result["by_length"], result["turns_at"]
    recommended = f" Recommended: {result['winner']}." if result["winner"] else ""
    yield f"**{result['verdict'].splitlines()[0]}**{recommended}"
    yield (
        f"That is about prompts like these: {times(scope['like_these'])}. On these very prompts it is "
        f"{times(scope['these_prompts'])}."
    )
    side = "ahead" if lengths[-1]["value"] > 1 else "behind"
    turns = "" if turn is None else f" Speculation is known to be {side} from about {turn:,} tokens on."
    told = "; ".join(f"{one['max_new_tokens']:,} tokens {times(one)}" for one in lengths)
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
    return "\n\n".join([table(rows), *([_listed(said)] if said else [])]) + "\n"


def rounds(summaries: Mapping[str, Json]) -> str:
    """Return predicted over measured time of rounds, by place in a text and lanes, and how lanes slow each other."""
    rows = [
        {"machine": machine, "lanes": kind}
        | {place: f"{found[place]['error']:+.1%} ({found[place]['of']:,})" for place in ("first", "second", "later")}
        for machine, summary in summaries.items()
        for kind, found in summary["rounds"].items()
    ]
    told = (lanes_at_once(machine, summary["machine"]["at_once"]) for machine, summary in summaries.items())
    return f"{table(rows)}\n\n{' '.join(told)}\n"


def lanes_at_once(machine: str, found: Json) -> str:
    """Return how much two lanes slow each other, by the calibrations' anchors on both at the same time."""
    low, middle, high = (found["slowdown"]["others"][name] for name in ("lower_quartile", "median", "upper_quartile"))
    return (
        f"{machine}: passes of one row on two lanes at once each take {middle:.2f} times as long as alone (quartiles "
        f"{low:.2f} to {high:.2f}); {found['slow']} of {found['of']} pairs took more than {SLOW:g} times as long."
    )


def corrections(result: Json) -> str:
    """Return the percentage points of error that each correction of a profile saves, by series and kind of runs."""

    def saved(bought: Json, runs: str) -> str:
        error, without = (bought[runs][name] for name in ("error", "refitted"))
        return "-" if error is None else f"{round(100 * (without - error), 1) + 0:.1f}"

    series = {"runs of the five demos": "demos", "29 November": "demos-2026-11-29", "28 November": "demos-2026-11-28"}
    columns = {told: (name, "schedules") for told, name in series.items()}
    columns["runs held back"] = ("demos", "held_back_runs")
    found = {_CORRECTIONS[name]: one for name, one in result["overheads"].items()}
    found |= {f"dropped since: {name}": result["removed"][key] for key, name in _DROPPED.items()}
    rows = [
        {"correction": name}
        | {told: saved(one[key], runs) if key in one else "-" for told, (key, runs) in columns.items()}
        for name, one in found.items()
    ]
    return table(rows) + "\n"


def held_out(result: Json) -> str:
    """Return how good predictions of other prompts and lengths are: by cell, quiet and busy, and all together."""
    found, rows = result["summary"], result["rows"]
    days: dict[str, set[str]] = {}
    for row in rows:
        days.setdefault(f"{row['machine']['cpu_model']} ({row['machine']['instruction_sets']})", set()).add(row["date"])
    machines = [f"{machine} on {listing(sorted(dates))}" for machine, dates in sorted(days.items())]
    kinds = ("by_cell", "by_use", "by_machine")
    told = [held_out_line(name, one) for kind in kinds for name, one in found[kind].items()]
    return (
        "\n\n".join(
            [
                f"{counted(found['num_runs'], 'run')}: {'; '.join(machines)}.",
                table([*told, *held_out_ends(result)]),
            ]
        )
        + "\n"
    )


def held_out_ends(result: Json) -> list[dict[str, str]]:
    """Return the last lines of a table: all runs by a profile of their day, and those by one of another day."""
    found = result["summary"]
    others = [row for row in result["rows"] if is_measured(row) and not row["same_day"]]
    lines = [held_out_line("all", found["all"])]
    if others:
        uses = listing(sorted({use_of(row) for row in others}, reverse=True))
        lines.append(held_out_line(f"profile of another day, {uses}", found["profile_of_another_day"]))
    return lines


def held_out_line(name: str, figures: Json) -> dict[str, str]:
    rounds, mean = figures["rounds_equal"], figures["speedup_error"]
    return {
        "cell": name,
        "prompts": str(figures["num_prompts"]),
        "schedule runs": str(figures["num_rows"]),
        "error": _spread(figures["error"]),
        "intervals": _share(figures["interval_coverage"]),
        "intervals of ratios": _share(figures["ratio_coverage"]),
        "speed-up, mean error": "-" if mean is None else f"{mean['mean']:+.1%}",
        "intervals of speed-ups": _share(figures["speedup_coverage"]),
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
            f"**Does speculation pay? {ANSWERS[result['pays']]}:** {times(result['speedup'])} the speed of plain "
            f"decoding. Errors after the correction are {accuracy['median_error_at_anchor']:.1%} in the median and "
            f"{accuracy['worst_error_at_anchor']:.1%} at most."
        ),
        table([_row(entry, is_winner=False) for entry in result["schedules"]]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def other_engines(peers: Json, break_even: Json) -> str:
    """Return the times of other engines, and the acceptance that would make our lanes as fast as the fastest."""
    rows = [
        {
            "engine": f"{'ours, ' if is_ours(name) else ''}{name}",
            "ms/token": "{median:.1f} ({lower_quartile:.1f} to {upper_quartile:.1f})".format(
                **{key: 1e3 * value for key, value in one["tpot_s"].items()}
            ),
            "times transformers": f"{one['times_as_fast_as_transformers']['median']:.2f}",
        }
        for name, one in peers["contenders"].items()
    ]
    counts = f"{peers['num_rounds']} rounds in turn, {peers['max_new_tokens']} new tokens"
    paragraphs = [
        f"The default model on both cores, {counts} each, medians and quartiles.",
        table(rows),
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


def is_ours(name: str) -> bool:
    return name.startswith(("plain", "schedule"))


def schedule_rows(result: Json) -> list[dict[str, str]]:
    """Return the rows of a demo's table, its winner in bold."""
    return [_row(entry, is_winner=entry["name"] == result["winner"]) for entry in result["schedules"]]


def _row(entry: Json, *, is_winner: bool) -> dict[str, str]:
    predicted, measured = entry["predicted"], entry["measured"]
    found = {
        "schedule": f"**{entry['name']}**" if is_winner else entry["name"],
        "ms/token predicted": _milliseconds(predicted["tpot_s"]),
        "measured": _milliseconds(measured["tpot_s"]),
        "error": f"{entry['tpot_error']:+.1%}",
        "corrected error": f"{entry['tpot_error_at_anchor']:+.1%}",
        "speed-up": _interval(entry["speedup_measured"]),
        "tokens per round": f"{measured['mean_acceptance_length']:.2f}",
        "hits": "-" if measured["reuse_rate"] is None else f"{measured['reuse_rate']:.0%}",
    }
    return found | ({"prompts": str(entry["num_prompts"])} if "num_prompts" in entry else {})


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{1 if seconds > 0.01 else 2}f}"


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
        **_error_of_ratios(figures),
        "intervals": _share(figures.get("actual_coverage")),
        "corrected intervals": _share(figures["interval_coverage"]),
        "equal rounds": f"{rounds['equal']} of {rounds['of']}",
        "recomputed": _recomputed(figures.get("recomputed")),
    }


def _error_of_ratios(figures: Json) -> dict[str, str]:
    """Return the error of ratios of times as they were; of a series that has it no more, of corrected times."""
    if "ratio_error" in figures:
        return {"error of ratios": _spread(figures["ratio_error"])}
    return {"corrected error of ratios": _spread(figures["ratio_error_at_anchor"])}


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


def table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows]).rstrip()


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def times(found: Json) -> str:
    if found["low"] is None:
        return f"{found['value']:.2f}×"
    return f"{found['value']:.2f}× ({found['low']:.2f}× to {found['high']:.2f}×)"


def _interval(found: Json | None) -> str:
    return "" if found is None else times(found).replace("×", "")


def _spread(errors: Json | None) -> str:
    return "" if errors is None else f"{errors['median']:.1%} ({errors['worst']:.1%})"
