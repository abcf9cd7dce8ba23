"""What benchmarks share: where results and pages are, how they are written, and the options that several take."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from calibrate.prompts import Prompt, bundled_prompts, load_prompts
from decoding.yaml_file import write_atomically

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "training.md"
EMBEDDED = "smollm2-135m-instruct"


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def prompt_arguments(doc: str | None) -> argparse.ArgumentParser:
    """The same with the options that `chosen_prompts` reads."""
    parser = arguments(doc)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl, or rows with a prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    return parser


def chosen_prompts(options: argparse.Namespace) -> tuple[str, Sequence[Prompt]]:
    """The name of the prompts, `shipped` or their file's stem, and every so many of them."""
    if options.prompts is None:
        return "shipped", bundled_prompts()[:: options.every]
    return options.prompts.stem, load_prompts(options.prompts)[:: options.every]


def read_result(path: Path) -> dict[str, Any]:
    """A result file."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def write_result(path: Path, content: object) -> None:
    """Write a result file at once or not at all."""
    write_atomically(path, json.dumps(content, indent=2, default=str) + "\n")


def rewrite_page(change: Callable[[str], str]) -> None:
    """Write docs/training.md anew."""
    PAGE.write_text(change(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_section(page: str, name: str, text: str) -> str:
    """The page with `text` between the two markers of that name."""
    section = rf"(<!-- {name}: written by benchmarks/\w+\.py -->\n).*?(<!-- end of {name} -->)"
    changed, count = re.subn(section, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    assert count == 1, f"the page has {count} sections named {name}"
    return changed


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with a line end after every row."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def quartiles(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """Median, lower and upper quartile, rounded if `digits` are given."""
    low, middle, high = (value if digits is None else round(value, digits) for value in quantiles(values, n=4))
    return {"median": middle, "lower_quartile": low, "upper_quartile": high}
