"""The page of a reproduction: one HTML file that opens offline, with published against predicted as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from decoding.yaml_file import write_atomically
from planner.page_template import page_template
from planner.reproduce.in_words import ARM_NAMES, amount, sentences, signed
from planner.reproduce.reproduction import Reproduction
from planner.wording import factor

_SIDE: Final = 400.0
"""Of the picture, in its own units."""


class Dot(NamedTuple):
    """A cell in the picture: how far to the right (published) and up (predicted), and what it is."""

    x: float
    y: float
    label: str


def write_page(found: Reproduction, origin: str, path: Path) -> None:
    """Write the page atomically; `origin` says where the constants are from."""
    write_atomically(path, render_page(found, origin))


def render_page(found: Reproduction, origin: str) -> str:
    """Return the page as text."""
    top = _top(found)
    template = page_template(Path(__file__).with_name("page.html"), {"factor": factor, "signed": signed})
    return template.render(
        found=found,
        origin=origin,
        paragraphs=list(sentences(found, origin)),
        arm_names=ARM_NAMES,
        arms=list(zip(ARM_NAMES, found.mean_arms, strict=True)),
        fastest=max(found.mean_arms),
        unknowns=found.setup.machine.unknowns(),
        amount=amount,
        side=_SIDE,
        dots=list(_dots(found, top)),
        ticks=[(_SIDE * tick / top, tick) for tick in range(int(top) + 1)],
    )


def _top(found: Reproduction) -> float:
    """Return the end of both axes: a whole number."""
    return float(int(max(max(cell.mirror_streaming, cell.published.mirror or 0.0) for cell in found.cells)) + 1)


def _dots(found: Reproduction, top: float) -> list[Dot]:
    return [
        Dot(
            _SIDE * cell.published.mirror / top,
            _SIDE * (1 - cell.mirror_streaming / top),
            f"{cell.published.task}, T = {cell.published.temperature:g}: published {factor(cell.published.mirror)}, "
            f"predicted {factor(cell.mirror_streaming)}",
        )
        for cell in found.cells
        if cell.published.mirror is not None
    ]
