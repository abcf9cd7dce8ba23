"""The table of shipped drafters in docs/training.md, made from their cards and the committed acceptance results.

    python benchmarks/drafters_table.py                                writes the table

Nothing in it is typed by hand: a test compares the page with cards and results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "training.md"
DRAFTERS = ROOT / "runtime" / "shipped"
RESULTS = ROOT / "benchmarks" / "results"
START = "<!-- drafters: written by benchmarks/drafters_table.py -->\n"
END = "<!-- end of drafters -->"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_table(page: str) -> str:
    """The page with the table between its markers."""
    before, rest = page.split(START)
    return before + START + table() + END + rest.split(END)[1]


def table() -> str:
    """One row for every setting of every shipped drafter."""
    results = {path.stem.removeprefix("acceptance-"): _read(path) for path in sorted(RESULTS.glob("acceptance-*.json"))}
    header = ["drafter", "MB", "answer tokens", "minutes", "setting", *results]
    rows = [
        [*_trained(_read(path)), setting, *(_mean(result, path.parent.name, setting) for result in results.values())]
        for path in sorted(DRAFTERS.glob("*/card.json"))
        for setting in _settings(results, path.parent.name)
    ]
    lines = [header, ["---"] * len(header), *rows]
    counts = [f"`{name}`: {result['num_prompts']} prompts" for name, result in results.items()]
    limits = {result["max_new_tokens"] for result in results.values()}
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{', '.join(counts)}; up to {', '.join(map(str, sorted(limits)))} new tokens each.\n\n{text}"


def _trained(card: Mapping[str, Any]) -> list[str]:
    """Name, size and training of a drafter."""
    megabytes, tokens = card["num_bytes"] / 1e6, card["num_training_tokens"]
    return [card["name"], f"{megabytes:.1f}", f"{tokens:,}", f"{card['training_minutes']:.0f}"]


def _settings(results: Mapping[str, Mapping[str, Any]], drafter: str) -> Iterator[str]:
    settings = [setting for result in results.values() for setting in result["drafters"].get(drafter, {})]
    yield from dict.fromkeys(settings)


def _mean(result: Mapping[str, Any], drafter: str, setting: str) -> str:
    figures = result["drafters"].get(drafter, {}).get(setting)
    return "-" if figures is None else f"{figures['mean_acceptance_length']:.2f}"


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


if __name__ == "__main__":
    main()
