"""The table of shipped drafters in docs/training.md, made from their cards and the committed acceptance results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _common import RESULTS, markdown_table, read_result

from runtime.drafters.shipped import SHIPPED_FOLDER
from training.judging.card import CARD_FILE

DRAFTERS = SHIPPED_FOLDER


def sections() -> dict[str, str]:
    """Return the table of docs/training.md, by marker."""
    return {"drafters": table()}


def table() -> str:
    """One row for every setting of every shipped drafter."""
    results = {
        path.stem.removeprefix("acceptance-"): read_result(path) for path in sorted(RESULTS.glob("acceptance-*.json"))
    }
    header = ["drafter", "MB", "answer tokens", "minutes", "setting", *results]
    rows = [
        [
            *_trained(config.parent),
            setting,
            *(_mean(result, config.parent.name, setting) for result in results.values()),
        ]
        for config in sorted(DRAFTERS.glob("*/config.json"))
        for setting in _settings(results, config.parent.name)
    ]
    counts = [f"`{name}`: {result['num_prompts']} prompts" for name, result in results.items()]
    limits = {result["max_new_tokens"] for result in results.values()}
    limit = ", ".join(map(str, sorted(limits)))
    return f"{', '.join(counts)}; up to {limit} new tokens each.\n\n{markdown_table(header, rows)}"


def _trained(folder: Path) -> list[str]:
    """Name, size and training of a drafter; what was not trained has no card."""
    if not (folder / CARD_FILE).is_file():
        return [folder.name, "-", "-", "-"]
    card = read_result(folder / CARD_FILE)
    megabytes, tokens = card["num_bytes"] / 1e6, card["num_training_tokens"]
    return [card["name"], f"{megabytes:.1f}", f"{tokens:,}", f"{card['training_minutes']:.0f}"]


def _settings(results: Mapping[str, Mapping[str, Any]], drafter: str) -> Iterator[str]:
    settings = [setting for result in results.values() for setting in result["drafters"].get(drafter, {})]
    yield from dict.fromkeys(settings)


def _mean(result: Mapping[str, Any], drafter: str, setting: str) -> str:
    figures = result["drafters"].get(drafter, {}).get(setting)
    return "-" if figures is None else f"{figures['mean_acceptance_length']:.2f}"
