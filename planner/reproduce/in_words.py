"""What a reproduction says in sentences: how far it is off, what its constants mean, and what it is no proof of."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from statistics import fmean
from typing import Final

from planner.reproduce.machine import ConstantName, Unknown
from planner.reproduce.own_steps import own_steps
from planner.reproduce.reproduction import PredictedCell, Reproduction
from planner.reproduce.setup import WINDOW
from planner.reproduce.streaming_draft import TOKENS_PER_HIDDEN_STEP
from planner.wording import counted, error_percent, factor, listing, milliseconds

_FEWEST_MS_S: Final = 1e-5
"""Two decimals of a millisecond tell nothing below."""
ARM_NAMES = ("SD", "SD + streams", "Mirror-SD, plain draft", "Mirror-SD + streams")


def sentences(found: Reproduction, origin: str = "") -> Iterator[str]:
    """Paragraphs, the answer first; `origin` says where the constants are from."""
    yield " ".join((*_accuracy(found), *_leads(found)))
    yield " ".join((_arms(found), *_unreached(found)))
    yield " ".join(_caution(found, origin))


def signed(error: float | None) -> str:
    """An error with its sign: `+3.5 %`; a dash where nothing was published."""
    return "-" if error is None else f"{error * 100:+.1f} %"


def amount(name: ConstantName, value: float) -> str:
    """A constant as people write it."""
    if not name.endswith("_s"):
        return f"{value:.2f}"
    return milliseconds(value) if value >= _FEWEST_MS_S else f"{value * 1e6:.1f} µs"


def at_bounds(found: Reproduction) -> list[Unknown]:
    """Constants that a fit drove to the end of what is physical."""
    return [
        one
        for one in found.setup.machine.unknowns()
        if one.name in found.fitted
        and any(isclose(found.constants[one.name], end, rel_tol=1e-3) for end in (one.low, one.high))
    ]


def _accuracy(found: Reproduction) -> Iterator[str]:
    compared = [cell for cell in found.cells if cell.error is not None]
    if found.mean_abs_error is None:
        yield "No Mirror-SD is published in this table, so that no error can be told."
        return
    worst = max(compared, key=lambda cell: abs(cell.error or 0.0))
    yield (
        f"Mean |error| of predicted Mirror-SD over {counted(len(compared), 'cell')}: "
        f"{error_percent(found.mean_abs_error)}; the largest is {signed(worst.error)} ({_place(worst)})."
    )


def _leads(found: Reproduction) -> Iterator[str]:
    both = [cell for cell in found.cells if cell.lead is not None and cell.published_lead is not None]
    if both:
        predicted, published = (
            fmean(lead or 0.0 for lead in leads)
            for leads in ([cell.lead for cell in both], [cell.published_lead for cell in both])
        )
        yield f"Its mean lead over the published EAGLE-3: {factor(predicted)} predicted, {factor(published)} published."


def _arms(found: Reproduction) -> str:
    means = found.mean_arms
    parts = listing([f"{name} {factor(mean)}" for name, mean in zip(ARM_NAMES, means, strict=True)])
    is_ordered = list(means) == sorted(means)
    ordered = "in the order of the paper's ablations" if is_ordered else "not in the order of the paper's ablations"
    return f"The four arms, mean speed-up over plain decoding: {parts}: {ordered}."


def _unreached(found: Reproduction) -> Iterator[str]:
    missed = [cell for cell in found.cells if not cell.is_reached]
    if missed:
        yield (
            f"In {counted(len(missed), 'cell')}, {_place(missed[0])} the first, no acceptance gives the published "
            "speed-up of vanilla SD on this machine; taken is the nearest that it can have."
        )


def _caution(found: Reproduction, origin: str) -> Iterator[str]:
    if found.fitted:
        yield (
            f"Fitted to these very cells: the error says how well {counted(len(found.fitted), 'constant')} can explain "
            "the table, not how well they predict another one; predict that with --no-fit."
        )
    elif origin.startswith(f"fitted to {found.table.source},"):
        yield "The constants were fitted to this very table before: its errors are those of a fit, not of a prediction."
    if ends := at_bounds(found):
        names = listing([one.name for one in ends])
        yield f"At an end of what is taken as physical: {names}; the fit would have gone on beyond."
    yield (
        "A table of speed-ups fixes ratios of times only. By these constants plain decoding takes "
        f"{milliseconds(found.arms.plain_s)} per token, which is nowhere published. Streams are a closed form: "
        f"{WINDOW} tokens in {WINDOW / TOKENS_PER_HIDDEN_STEP:g} hidden steps, as published, their rows as in "
        "Speculative Streaming. Vanilla SD is taken to have the same draft on the same devices."
    )
    own = own_steps(found)
    yield (
        "Step by step, as drafts of this product do, with rows that verify every guess, and with guesses right so "
        f"often ({own.rate:.2f}) that a window takes as many steps, {ARM_NAMES[1]} comes to {factor(own.in_turn)} and "
        f"{ARM_NAMES[3]} to {factor(own.mirror)}."
    )


def _place(cell: PredictedCell) -> str:
    return f"{cell.published.task} at T = {cell.published.temperature:g}"
