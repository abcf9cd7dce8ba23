"""Writes all that pages show of the committed results: tables, README's figures and its picture.

    python benchmarks/pages.py

Nothing between the markers of a page is typed by hand: a test compares the pages with the result files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import _common
import _picture
import _results_page
import acceptance
import draft_streams
import exit_coverage
import exit_features
import llamacpp
import training_curves
import vocabulary

ROOT: Final = Path(__file__).parents[1]
_TRAINING: Final = (acceptance, exit_coverage, exit_features, vocabulary, draft_streams, training_curves)
SECTIONS: Final[dict[str, tuple[Callable[[], dict[str, str]], ...]]] = {
    "README.md": (_results_page.plan, _results_page.matrix, _results_page.headline),
    "docs/engines.md": (llamacpp.sections,),
    "docs/results.md": (_results_page.sections,),
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
        return _picture.picture()
    text = (ROOT / name).read_text(encoding="utf-8")
    for sections in SECTIONS[name]:
        for marker, section in sections().items():
            text = _common.with_section(text, marker, section)
    return text


if __name__ == "__main__":
    main()
