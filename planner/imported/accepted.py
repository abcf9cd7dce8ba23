"""How often an engine accepted drafted tokens: rates by place, from whatever it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Any, Final

from decoding.errors import ConfigError
from decoding.schedule import MAX_WINDOW
from planner.imported.engine_page import PageRow

_BISECTIONS: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAcceptance:
    """Rates of one run.

    Attributes:
        engine: what ran.
        rates: for each drafted place how often it was accepted, given that all before it were.
        how: whether the engine counts by place, or only a mean, which one rate at every place explains.
        num_rounds: verifications that were counted; None where that is not told.
        source: the file.
    """

    engine: str
    rates: tuple[float, ...]
    how: str
    num_rounds: int | None
    source: str

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per verification."""
        return 1.0 + sum(accumulate(self.rates, mul), 0.0)

    @property
    def entry(self) -> dict[str, Any]:
        """What scripts get."""
        return {
            "engine": self.engine,
            "rates": list(self.rates),
            "how": self.how,
            "rounds": self.num_rounds,
            "mean_acceptance_length": self.mean_acceptance_length,
            "source": self.source,
        }

    @classmethod
    def of_shares(
        cls, engine: str, row: PageRow, shares: Sequence[Any], *, num_rounds: int | None, out_of: float = 1.0
    ) -> EngineAcceptance:
        """Return rates from how often each place was accepted together with all before it, `out_of` so many rounds.

        Raises:
            ConfigError: a share is none, or one is larger than that of the place before.
        """
        field = "accepted by place"
        at = PageRow(row.path, row.line, {field: list(shares)})
        numbers = [out_of, *(_number(one) for one in shares)]
        if not 0 < len(shares) <= MAX_WINDOW or out_of <= 0:
            raise at.wrong(field, f"1 to {MAX_WINDOW} places, of a round or more")
        if not all(0 <= later <= before * (1 + 1e-9) for before, later in pairwise(numbers)):
            raise at.wrong(field, f"numbers that fall from place to place, from {out_of:g} at most to 0 at least")
        known = [(before, later) for before, later in pairwise(numbers) if before > 0]
        rates = tuple(min(1.0, later / before) for before, later in known)
        return cls(engine=engine, rates=rates, how="by place", num_rounds=num_rounds, source=row.path.name)

    @classmethod
    def of_mean(
        cls, engine: str, path: Path, mean_length: float, *, drafted: float | None, num_rounds: int | None = None
    ) -> EngineAcceptance:
        """Return the one rate that explains so many committed tokens per verification of `drafted` tokens.

        Raises:
            ConfigError: nobody says how many tokens are drafted, or no rate explains it.
        """
        if drafted is None:
            msg = f"{path}: {mean_length:.3g} tokens a verification are told, and not of how many drafted ones"
            raise ConfigError(f"{msg}; say them: --window 4")
        window = round(drafted)
        if not 1 <= window <= MAX_WINDOW or not 1 <= mean_length <= window + 1 + 1e-6:
            msg = f"{path}: {mean_length:.4g} committed tokens a verification of {drafted:.4g} drafted ones"
            raise ConfigError(f"{msg}; expected 1 to {MAX_WINDOW} drafted ones and at most one token more")
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            rate = (low + high) / 2
            low, high = (rate, high) if sum(rate**place for place in range(window + 1)) < mean_length else (low, rate)
        rates, how = (high,) * window, "one rate from the mean"
        return cls(engine=engine, rates=rates, how=how, num_rounds=num_rounds, source=path.name)


def _number(value: Any) -> float:
    """Return a number; not a number for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return float("nan")
    return float(value)
