"""The README's results table, made from what `mirrorsd demo --json` wrote.

    python benchmarks/readme_table.py out/demo/demo.json              prints the table of a run
    python benchmarks/readme_table.py --write                         puts benchmarks/results/demo.json into README.md

Nothing in the table is typed by hand: a test compares README.md with the committed result file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COMMITTED = ROOT / "benchmarks" / "results" / "demo.json"
START = "<!-- results: written by benchmarks/readme_table.py -->\n"
END = "<!-- end of results -->"


def results(demo: Mapping[str, Any]) -> str:
    """The section between the README's two markers."""
    rows = "".join(_row(entry, is_winner=entry["name"] == demo["winner"]) for entry in demo["schedules"])
    return (
        f"{_machine(demo)}\n\n"
        "| schedule | ms/token predicted | measured | error | tokens per round | hits |\n"
        "|---|---|---|---|---|---|\n"
        f"{rows}\n"
        f"{demo['verdict'].strip()}\n\n"
        "Tokens per round is `mean_acceptance_length`, the target's own token included; hits is `reuse_rate`. The\n"
        "search's winner is bold. Made by `make demo` and `benchmarks/readme_table.py` from\n"
        "`benchmarks/results/demo.json`.\n"
    )


def with_results(readme: str, section: str) -> str:
    """The README with `section` between its markers."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return before + START + section + END + after


def main(arguments: list[str]) -> None:
    """Print or write, as the module's docstring says."""
    if arguments == ["--write"]:
        section = results(json.loads(COMMITTED.read_text(encoding="utf-8")))
        README.write_text(with_results(README.read_text(encoding="utf-8"), section), encoding="utf-8")
    elif len(arguments) == 1:
        print(results(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))), end="")
    else:
        sys.exit(__doc__)


def _row(entry: Mapping[str, Any], *, is_winner: bool) -> str:
    predicted, measured = entry["predicted"], entry["measured"]
    name = f"**{entry['name']}**" if is_winner else entry["name"]
    hits = "-" if measured["reuse_rate"] is None else f"{measured['reuse_rate']:.0%}"
    return (
        f"| {name} | {predicted['tpot_s'] * 1e3:.1f} | {measured['tpot_s'] * 1e3:.1f} | {entry['tpot_error']:+.1%} "
        f"| {measured['mean_acceptance_length']:.2f} | {hits} |\n"
    )


def _machine(demo: Mapping[str, Any]) -> str:
    host = demo["platform"]
    machine = f"{host['cpu_model']}, {len(host['cores'])} cores, torch {host['torch']}"
    models = f"{host['target']} with {host['drafter']}, {host['dtype']}"
    return f"{machine};\n{models}; {demo['num_prompts']} prompts, up to {demo['max_new_tokens']} new tokens each."


if __name__ == "__main__":
    main(sys.argv[1:])
