"""How often drafted tokens are accepted in public measurements, by kind of drafter."""

import csv
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, NamedTuple

import numpy as np

from planner.published.round_tokens import rate_of_tokens
from sim.derived.assumption import Assumption

FILE: Final = Path(__file__).with_name("acceptance.csv")
"""Tokens of a round in public measurements of named models on real texts, by tokens drafted. None is of a case of
benchmarks/public-cases.yaml, and none whose author calls it broken."""
Kind = Literal["mtp", "eagle", "draft", "block", "heads", "lookup", "self"]
_FEWEST_SOURCES: Final = 4


class _Told(NamedTuple):
    """What a source tells: tokens of a round, by tokens drafted."""

    kind: str
    drafted: int
    tokens: float
    source: str


@cache
def usual_rate(kind: Kind, *, is_single: bool = False) -> Assumption:
    """Return how often a drafted token is accepted where those before it are, in windows of one token or of several.

    That is the median of public measurements, each source counted once, and nine of ten of them: a head is right about
    its first token more often than about those that it drafts from its own states. Where few tell of single tokens,
    windows of several stand in.
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
