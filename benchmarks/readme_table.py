"""The README's results, made from the committed demos.

    python benchmarks/readme_table.py out/demo/demo.json              prints the section of a run
    python benchmarks/readme_table.py --write                         puts the committed demos into README.md

The first of benchmarks/results/demos/ is shown in full, with all that it says of its rounds and of the circumstances,
and each of them in a line; then the series on lanes of torch, the pair of benchmarks/results/large-pair.json, and
other engines (benchmarks/results/peers.json).
Nothing is typed by hand: a test compares README.md with the committed files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from _common import RESULTS, markdown_table, read_result

README = Path(__file__).parents[1] / "README.md"
START = "<!-- results: written by benchmarks/readme_table.py -->\n"
END = "<!-- end of results -->"
_COLUMNS: Final = """\
Tokens per round is `mean_acceptance_length`, the target's own token included; hits is `reuse_rate`. What is recommended
is bold."""
_FIGURES: Final = """\
Errors are the median of all schedules, and in brackets the worst: as calibrated; at the anchors' speed, where the
machine's own change of speed since calibration, timed around every run, is taken out; and of ratios of two schedules on
the same lanes. Intervals: how many of those of 90 % hold the time at the anchors' speed. Rounds: how many texts went
through the simulated rounds."""

Json = Mapping[str, Any]


def committed() -> str:
    """The section of what is committed."""
    shown, summary = read_result(RESULTS / "demos" / "1" / "demo.json"), read_result(RESULTS / "demos.json")
    sources = (
        "`benchmarks/demos.py`, which keeps all that the tables are worked out from in `benchmarks/results/demos/`"
    )
    large = large_pair(read_result(RESULTS / "large-pair.json"))
    torch = torch_demos(read_result(RESULTS / "demos-torch.json"))
    others = other_engines(read_result(RESULTS / "peers.json"), read_result(RESULTS / "peers-break-even.json"))
    return results(shown) + all_demos(summary) + _made_from(sources) + torch + large + others


def results(demo: Json) -> str:
    """One demo in full: machine, table, verdict, rounds and notes."""
    rows = [_row(entry, is_winner=entry["name"] == demo["winner"]) for entry in demo["schedules"]]
    paragraphs = [
        _machine(demo),
        _table(rows),
        _COLUMNS,
        demo["verdict"].strip(),
        "What else the result says:",
        _listed([demo["rounds"], *demo["notes"]]),
    ]
    return "\n\n".join(paragraphs) + "\n\n"


def all_demos(summary: Json) -> str:
    """A line for each of several demos and one for all together, and what they say of the circumstances."""
    demos = summary["demos"]
    rows = [_line(name, demo) for name, demo in demos.items()]
    rows.append(_line("all", summary["all"] | {"pays": None}))
    told: dict[str, list[str]] = {}
    for name, demo in demos.items():
        for note in demo["notes"]:
            told.setdefault(note, []).append(name)
    paragraphs = [
        f"All {len(demos)} demos of a series, none left out; the first is the one above:",
        _table(rows),
        _FIGURES,
        *([_listed([f"{note} (demo {', '.join(names)})" for note, names in told.items()])] if told else []),
    ]
    return "\n\n".join(paragraphs) + "\n\n"


def torch_demos(summary: Json) -> str:
    """The same series on compiled lanes, a line for each."""
    rows = [_line(name, demo) for name, demo in summary["demos"].items()]
    rows.append(_line("all", summary["all"] | {"pays": None}))
    paragraphs = [
        "### On lanes of torch",
        f"`mirrorsd demo --device cpu`, {len(summary['demos'])} times in a row, none left out:",
        _table(rows),
        _made_from("`benchmarks/demos.py`, told to use torch").rstrip(),
    ]
    return "\n" + "\n\n".join(paragraphs) + "\n"


def large_pair(result: Json) -> str:
    """A pair of a size that people use, on the same machine: what was real of it, the table, and the verdict."""
    host, settings, accuracy = result["platform"], result["settings"], result["accuracy"]
    models = f"{host['target']} with {host['drafter']}, {host['dtype']}"
    counts = f"{result['num_prompts']} prompts, {settings['tokens']} new tokens each"
    middle, worst = accuracy["median_error_at_anchor"], accuracy["worst_error_at_anchor"]
    paragraphs = [
        "### A size that people use",
        f"{models}, on lanes {', '.join(settings['lanes'])};\n{counts}.",
        f"{result['label'][0].upper()}{result['label'][1:]}",
        _table([_row(entry, is_winner=False) for entry in result["schedules"]]),
        result["verdict_measured"].strip(),
        f"At the anchors' speed errors are {middle:.1%} in the median and {worst:.1%} at most.",
        _made_from("`benchmarks/large_pair.py`").rstrip(),
    ]
    return "\n" + "\n\n".join(paragraphs) + "\n"


def other_engines(peers: Json, break_even: Json) -> str:
    """What others take for the same texts, and how much would have to be accepted to be as fast as the fastest."""
    rows = [
        {
            "engine": f"{'ours, ' if name.startswith(('plain', 'schedule')) else ''}{name}",
            "ms/token": "{median:.1f} ({lower_quartile:.1f} to {upper_quartile:.1f})".format(
                **{key: 1e3 * value for key, value in one["tpot_s"].items()}
            ),
            "times transformers": f"{one['times_as_fast_as_transformers']['median']:.2f}",
        }
        for name, one in peers["contenders"].items()
    ]
    counts = f"{peers['num_rounds']} rounds in turns, {peers['max_new_tokens']} new tokens"
    paragraphs = [
        "### Next to other engines",
        f"The embedded model on both cores, {counts} each, medians and quartiles:",
        _table(rows),
        _needed(break_even),
        _made_from("`benchmarks/peers.py` and `benchmarks/peers_break_even.py`").rstrip(),
    ]
    return "\n" + "\n\n".join(paragraphs) + "\n"


def _needed(break_even: Json) -> str:
    needed, recorded, engine = break_even["needed"], break_even["recorded"], break_even["engine"]
    times, tokens = break_even["times_our_plain"], recorded["mean_acceptance_length"]
    wanted = f"To be as fast as {engine}, our lanes in int8 need {times:.2f}× their plain speed."
    now = f"What was recorded gives {recorded['gain']:.2f}× at most, with {tokens:.2f} tokens a round."
    if needed is None:
        end = f"{break_even['gain_if_all_is_accepted']:.2f}× if everything is accepted, so no acceptance suffices."
        return f"{wanted} Synchronous speculation by this draft gives {end} {now}"
    return (
        f"{wanted} Synchronous speculation by this draft gives that (predicted) where {needed['rate']:.0%} of what is "
        f"drafted at any place is accepted, {needed['mean_acceptance_length']:.2f} tokens a round. {now}"
    )


def with_results(readme: str, section: str) -> str:
    """The README with `section` between its markers."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return before + START + section + END + after


def main(arguments: list[str]) -> None:
    """Print or write, as the module's docstring says."""
    if arguments == ["--write"]:
        README.write_text(with_results(README.read_text(encoding="utf-8"), committed()), encoding="utf-8")
    elif len(arguments) == 1:
        print(results(read_result(Path(arguments[0]))), end="")
    else:
        sys.exit(__doc__)


def _row(entry: Json, *, is_winner: bool) -> dict[str, str]:
    return dict(_cells(entry, name=f"**{entry['name']}**" if is_winner else entry["name"]))


def _cells(entry: Json, *, name: str) -> Iterator[tuple[str, str]]:
    """Heading and text; results from before there were anchors lack some."""
    predicted, measured = entry["predicted"], entry["measured"]
    yield "schedule", name
    yield "ms/token predicted", f"{predicted['tpot_s'] * 1e3:.1f}"
    yield "measured", f"{measured['tpot_s'] * 1e3:.1f}"
    yield "error", f"{entry['tpot_error']:+.1%}"
    if "tpot_error_at_anchor" in entry:
        yield "error at the anchors' speed", f"{entry['tpot_error_at_anchor']:+.1%}"
    if "speedup_measured" in entry:
        yield "times plain decoding", _interval(entry["speedup_measured"])
    yield "tokens per round", f"{measured['mean_acceptance_length']:.2f}"
    yield "hits", "-" if measured["reuse_rate"] is None else f"{measured['reuse_rate']:.0%}"


def _line(name: str, figures: Json) -> dict[str, str]:
    covered, rounds = figures["interval_coverage"], figures["rounds_equal"]
    return {
        "demo": name,
        "speculation pays": (figures["pays"] or "").replace("_", " "),
        "winner, times plain decoding": _interval(figures.get("winner_speedup")),
        "error as calibrated": _spread(figures["error"]),
        "at the anchors' speed": _spread(figures["error_at_anchor"]),
        "of ratios": _spread(figures["ratio_error"]),
        "intervals": f"{covered['covered']} of {covered['of']}",
        "rounds": f"{rounds['equal']} of {rounds['of']}",
    }


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows]).rstrip()


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _interval(found: Json | None) -> str:
    return "" if found is None else f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _spread(errors: Json | None) -> str:
    return "" if errors is None else f"{errors['median']:.1%} ({errors['worst']:.1%})"


def _machine(demo: Json) -> str:
    host = demo["platform"]
    machine = f"{host['cpu_model']}, {len(host['cores'])} cores, torch {host['torch']}"
    models = f"{host['target']} with {host['drafter']}, {host['dtype']}"
    return f"{machine};\n{models}; {demo['num_prompts']} prompts, up to {demo['max_new_tokens']} new tokens each."


def _made_from(sources: str) -> str:
    return f"Made by `benchmarks/readme_table.py` from {sources}.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
