"""`speculation_profile.json` of NVIDIA's Model Optimizer: rates by place, as they were measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import Final

from planner.imported.accepted import EngineAcceptance
from planner.imported.engine_page import Page

_RATES: Final = "conditional_accept_rates"
_SHARES: Final = "marginal_accept_rates"
_TOLERANCE: Final = 0.02


def is_speculation_profile(page: Page) -> bool:
    """Return whether a page has the fields of one, measured or not."""
    return "schema_version" in page.fields and bool(page.fields & {_RATES, _SHARES, "measured"})


def read_speculation_profile(page: Page) -> Iterator[EngineAcceptance]:
    """Yield the rates; its own mean must agree with them."""
    for row in page.rows[:1]:
        if row.fields.get("measured") is not True:
            raise row.wrong("measured", "true: a profile that nobody measured says nothing")
        field = _RATES if row.fields.get(_RATES) else _SHARES
        values = row.fields.get(field)
        if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
            raise row.wrong(field, "a list of rates")
        shares = list(accumulate(values, mul)) if field == _RATES else values
        found = EngineAcceptance.of_shares(str(row.fields.get("method") or "a drafter"), row, shares, num_rounds=None)
        if "mean_accept_length" in row.fields:
            told = row.number("mean_accept_length", least=1)
            if abs(found.mean_acceptance_length / told - 1) > _TOLERANCE:
                raise row.wrong("mean_accept_length", f"{found.mean_acceptance_length:.4g}, as its rates come to")
        yield found
