"""Writes all that pages show of the committed results: tables, README's figures and its picture.

    python benchmarks/pages.py

Nothing between the markers of a page is typed by hand: a test compares the pages with the result files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import _common
import _gpu_page
import _readme_page
import _results_page
import acceptance
import draft_streams
import exit_coverage
import llamacpp
import training_curves

ROOT: Final = Path(__file__).parents[1]
_TRAINING: Final = (acceptance, exit_coverage, draft_streams, training_curves)
SECTIONS: Final[dict[str, tuple[Callable[[], dict[str, str]], ...]]] = {
    "README.md": (_readme_page.plan, _readme_page.matrix, _readme_page.headline),
    "docs/engines.md": (llamacpp.sections,),
    "docs/results.md": (_results_page.sections, _gpu_page.sections),
    "docs/training.md": tuple(module.sections for module in _TRAINING),
}
"""The functions that return a page's sections, by page."""
PICTURE: Final = "docs/predicted-measured.svg"


def main() -> None:
    """Write the pages and the picture."""
    _common.arguments(__doc__).parse_args()
    for name in (*SECTIONS, PICTURE):
        (ROOT / name).write_text(content(name), encoding="utf-8")


def content(name: str) -> str:
    """Return a page, or the picture, as the committed results make it."""
    if name == PICTURE:
        return picture(_common.read_result(_common.RESULTS / "demos" / "1" / "demo.json"))
    text = (ROOT / name).read_text(encoding="utf-8")
    for sections in SECTIONS[name]:
        for marker, section in sections().items():
            text = _common.with_section(text, marker, section)
    return text


_WIDTH: Final = 860
_LABELS: Final = 380
"""Pixels of the column with the names of schedules."""
_BAR, _ROW, _TOP = 9, 30, 58
_COLOURS: Final = {"predicted": "#9aa7b8", "measured": "#2f6fb0"}


def picture(demo: Mapping[str, Any]) -> str:
    """Return two bars for every schedule of a demo, fastest first, and a line at plain decoding's measured time."""
    entries = sorted(demo["schedules"], key=lambda entry: float(entry["measured"]["tpot_s"]))
    slowest = max(entry[world]["tpot_s"] for entry in entries for world in _COLOURS)
    scale = (_WIDTH - _LABELS - 60) / slowest
    height = _TOP + _ROW * len(entries) + 12
    plain = min(entry["measured"]["tpot_s"] for entry in entries if entry["method"] == "autoregressive")
    host = demo["platform"]
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="22" font-size="15" font-weight="bold">Milliseconds per token, predicted and measured</text>',
        (
            f'<text x="12" y="42" fill="#555">{escape(host["target"])} on {len(host["cores"])} cores of an '
            f"{escape(host['cpu_model'])}, {demo['num_prompts']} prompts</text>"
        ),
        *_legend(),
        *(line for place, entry in enumerate(entries) for line in _bars(entry, _TOP + _ROW * place, scale)),
        (
            f'<line x1="{_LABELS + plain * scale:.1f}" x2="{_LABELS + plain * scale:.1f}" y1="{_TOP - 4}" '
            f'y2="{height - 8}" stroke="#c0392b" stroke-dasharray="4 3"/>'
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend() -> Iterator[str]:
    for place, (world, colour) in enumerate(_COLOURS.items()):
        x = _WIDTH - 310 + 95 * place
        yield f'<rect x="{x}" y="14" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="23">{world}</text>'
    x = _WIDTH - 120
    yield f'<line x1="{x}" x2="{x + 10}" y1="19" y2="19" stroke="#c0392b" stroke-dasharray="4 3"/>'
    yield f'<text x="{x + 15}" y="23">plain decoding</text>'


def _bars(entry: Mapping[str, Any], y: int, scale: float) -> Iterator[str]:
    yield f'<text x="{_LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(entry["name"])}</text>'
    for place, (world, colour) in enumerate(_COLOURS.items()):
        width = entry[world]["tpot_s"] * scale
        top = y + place * (_BAR + 1)
        yield f'<rect x="{_LABELS}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        value = f"{entry[world]['tpot_s'] * 1e3:.1f}"
        yield f'<text x="{_LABELS + width + 5:.1f}" y="{top + _BAR}" font-size="10">{value}</text>'


if __name__ == "__main__":
    main()
