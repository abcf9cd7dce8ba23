"""Acceptance rates by position from whatever an engine counts.

Also reads `speculation_profile.json` of NVIDIA's Model Optimizer, which has the rates themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import nan
from operator import mul
from pathlib import Path
from sys import float_info
from typing import Any, Final

from decoding.errors import ConfigError
from decoding.schedule import MAX_WINDOW
from planner.imported.engine_page import Page, PageRow, Told

_BISECTIONS: Final = 60
_TOLD: Final = 0.005
"""Differences of tokens per verification below this are not printed."""
_SHORTER: Final = 0.1
"""Drafts that are shorter than the window by less than this share (on average) only end with their answers."""
Counts = tuple[float, float, float]
"""Rounds, accepted tokens and drafted tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAcceptance:
    """Acceptance rates of one run of `engine`, from the file `source`.

    Attributes:
        rates: for each position of a draft, how often it was accepted, given that all before it were.
        how: whether the engine counts by position, or one rate for all positions was derived from a mean.
        num_rounds: counted verifications; None if the file does not say.
        mean_acceptance_length: mean committed tokens per verification.
        drafted: mean tokens per draft; None if the engine counts by position.
    """

    engine: str
    rates: tuple[float, ...]
    how: str
    num_rounds: int | None
    source: str
    mean_acceptance_length: float
    drafted: float | None = None

    @property
    def in_words(self) -> str:
        """Committed tokens per verification and, if drafts were shorter than `rates`, what full drafts would commit."""
        told, of_rates = f"{self.mean_acceptance_length:.2f} tokens per verification", _committed(self.rates)
        if self.drafted is None or abs(of_rates - self.mean_acceptance_length) < _TOLD:
            return told
        return (
            f"{told} with {self.drafted:.3g} drafted on average; at these rates, {of_rates:.2f} with {len(self.rates)}"
        )

    @property
    def entry(self) -> dict[str, Any]:
        """Return what `mirrorsd import --json` writes of it."""
        return {
            "engine": self.engine,
            "rates": list(self.rates),
            "how": self.how,
            "rounds": self.num_rounds,
            "mean_acceptance_length": self.mean_acceptance_length,
            "drafted": self.drafted,
            "source": self.source,
        }

    @classmethod
    def of_shares(
        cls, engine: str, row: PageRow, shares: Sequence[Any], *, num_rounds: int | None, out_of: float = 1.0
    ) -> "EngineAcceptance":
        """Return rates from how often each position was accepted with all before it, out of `out_of` rounds."""
        field = "accepted by position"
        at = PageRow(row.path, row.line, {field: list(shares)})
        numbers = [out_of, *(_number(one) for one in shares)]
        if not 0 < len(shares) <= MAX_WINDOW or out_of <= 0:
            raise at.wrong(field, f"1 to {MAX_WINDOW} positions, over one round or more")
        if not all(0 <= later <= before * (1 + 1e-9) for before, later in pairwise(numbers)):
            raise at.wrong(field, f"numbers from 0 to {out_of:g} that do not rise from position to position")
        known = [(before, later) for before, later in pairwise(numbers) if before > 0]
        rates = tuple(min(1.0, later / before) for before, later in known)
        return cls(
            engine=engine,
            rates=rates,
            how="by position",
            num_rounds=num_rounds,
            source=row.path.name,
            mean_acceptance_length=_committed(rates),
        )

    @classmethod
    def of_places(
        cls, engine: str, row: PageRow, by_place: Sequence[Any], counts: Counts, *, out_of: float | None = None
    ) -> "EngineAcceptance":
        """Return rates as `of_shares` does, or if many drafts ended before the last position, one as `of_counts` does.

        In shorter drafts the last positions were not refused, but not drafted; shares would count them as refused.
        """
        rounds, _, drafted = counts
        if not by_place or drafted < (1 - _SHORTER) * rounds * len(by_place):
            return cls.of_counts(row, engine, counts)
        return cls.of_shares(engine, row, by_place, num_rounds=round(rounds), out_of=out_of or rounds)

    @classmethod
    def of_counts(cls, row: PageRow, engine: str, counts: Counts, *, window: int | None = None) -> "EngineAcceptance":
        """Return the one rate for all positions that gives these counts (of at least one round)."""
        rounds, accepted, drafted = counts
        mean_length = 1 + accepted / rounds
        return cls.of_mean(engine, row.path, mean_length, drafted=window or drafted / rounds, num_rounds=rounds)

    @classmethod
    def of_mean(
        cls, engine: str, path: Path, mean_length: float, *, drafted: float | None, num_rounds: float | None = None
    ) -> "EngineAcceptance":
        """Return the one rate at which drafts of `drafted` tokens commit `mean_length` tokens on average.

        With drafts of several lengths (llama.cpp's `--spec-draft-p-min`) `drafted` is their mean: for 2.4, four of ten
        drafts are assumed to have a third token. Raises `ConfigError` if no rate gives that mean.
        """
        if drafted is None:
            msg = f"{path}: gives {mean_length:.3g} tokens per verification, but not how many were drafted"
            raise ConfigError(f"{msg}; give the number, such as --window 4")
        if not 0 < drafted <= MAX_WINDOW or not 1 <= mean_length <= drafted + 1 + 1e-6:
            msg = f"{path}: {mean_length:.4g} committed tokens per verification with {drafted:.4g} drafted ones"
            expected = f"at most {MAX_WINDOW} drafted tokens, and at most one committed token more than drafted"
            raise ConfigError(f"{msg}; expected {expected} (--window 4 says how many were drafted)")
        whole, part = divmod(drafted, 1)

        def committed(rate: float) -> float:
            return float(sum(rate**place for place in range(int(whole) + 1)) + part * rate ** (whole + 1))

        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            rate = (low + high) / 2
            low, high = (rate, high) if committed(rate) < mean_length else (low, rate)
        window = max(1, round(drafted))
        rates, counted = (high,) * window, round(num_rounds) if num_rounds else None
        return cls(
            engine=engine,
            rates=rates,
            how="one rate from the mean",
            num_rounds=counted,
            source=path.name,
            mean_acceptance_length=mean_length,
            drafted=drafted,
        )


def _committed(rates: Sequence[float]) -> float:
    """Return the mean number of tokens that a verification commits, given the rate of every position."""
    return 1.0 + sum(accumulate(rates, mul), 0.0)


def _number(value: Any) -> float:
    """Return a number; NaN for anything else, and for a whole number that is too large for a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max
    return float(value) if is_number else nan


def require_total(row: PageRow, field: str, found: float, counted: str, *, off_by: float = 0.0) -> None:
    """Raise `ConfigError` if the total in `field` differs from `found`, the sum over the entries of `counted`.

    A server goes on counting while it writes its metrics, so that they may differ by `off_by`.
    """
    if field in row.fields and abs(row.number(field) - found) > off_by:
        raise row.wrong(field, f"{found:g}, the sum of {counted}")


RATES: Final = "conditional_accept_rates"
SHARES: Final = "marginal_accept_rates"
TOLERANCE: Final = 0.02


def read_speculation_profile(page: Page, _: Told) -> Iterator[EngineAcceptance]:
    """Yield the rates of the file, whose mean must agree with them."""
    for row in page.rows[:1]:
        if row.fields.get("measured") is not True:
            raise row.wrong("measured", "true: only measured profiles are read")
        field = RATES if row.fields.get(RATES) else SHARES
        values = row.fields.get(field)
        if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
            raise row.wrong(field, "a list of rates")
        shares = list(accumulate(map(_number, values), mul)) if field == RATES else values
        found = EngineAcceptance.of_shares(str(row.fields.get("method") or "a drafter"), row, shares, num_rounds=None)
        if "mean_accept_length" in row.fields:
            told = row.number("mean_accept_length", least=1)
            if abs(found.mean_acceptance_length / told - 1) > TOLERANCE:
                raise row.wrong("mean_accept_length", f"{found.mean_acceptance_length:.4g}, which its rates give")
        yield found
