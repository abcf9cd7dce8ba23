"""Default acceptance rates by kind of drafter, from public measurements."""

import csv
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, NamedTuple

import numpy as np

from planner.published.round_tokens import rate_of_tokens
from sim.derived.assumption import Assumption

FILE: Final = Path(__file__).with_name("acceptance.csv")
"""Tokens per round in public measurements of named models on real texts, by tokens drafted. It has no case of
benchmarks/public-cases.yaml, and no measurement that its author calls broken."""
Kind = Literal["mtp", "eagle", "draft", "block", "heads", "lookup", "self"]
_FEWEST_SOURCES: Final = 4


class _Told(NamedTuple):
    """One published measurement: tokens per round with `drafted` tokens."""

    kind: str
    drafted: int
    tokens: float
    source: str


@cache
def usual_rate(kind: Kind, *, is_single: bool = False) -> Assumption:
    """Return how often a drafted token is accepted if those before it are, in windows of one token or of several.

    The value is the median of public measurements, each source counted once, and its interval covers nine of ten of
    them. Windows of one token (`is_single`) are apart, since heads are right about their first token more often than
    about later ones; with few measurements of them, windows of several stand in.
    """
    if kind in ("heads", "lookup", "self"):
        return Assumption.shipped(f"acceptance.rate/{kind}")
    by_source: dict[str, list[float]] = {}
    for one in _told():
        if one.kind == kind and (one.drafted == 1) == is_single:
            by_source.setdefault(one.source, []).append(rate_of_tokens(one.tokens, one.drafted))
    if len(by_source) < _FEWEST_SOURCES:
        return usual_rate(kind)
    rates = [fmean(rates) for rates in by_source.values()]
    low, value, high = (round(float(np.quantile(rates, share)), 2) for share in (0.05, 0.5, 0.95))
    source = f"median of {len(rates)} public sources: {', '.join(by_source)}"
    return Assumption.of("acceptance.rate", value, "derived", source, span=(low, high))


def _told() -> list[_Told]:
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return [_Told(line["kind"], int(line["drafted"]), float(line["tokens"]), line["source"]) for line in lines]
