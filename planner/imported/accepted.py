"""How often an engine accepted drafted tokens: rates by position, from whatever it counts.

Sources are answers of llama-server, vLLM and SGLang, their Prometheus metrics and TensorRT-LLM's, and
`speculation_profile.json` of NVIDIA's Model Optimizer. Counters of a metrics page run since the server started, over
all its drafters and the time without one.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, nan
from operator import mul
from pathlib import Path
from sys import float_info
from typing import Any, Final

from decoding.errors import ConfigError
from decoding.schedule import MAX_WINDOW
from planner.imported.engine_page import Page, PageRow, Told

_BISECTIONS: Final = 60
_TOLD: Final = 0.005
"""Tokens per verification that are told."""
_SHORTER: Final = 0.1
"""By how much, relative, drafts are shorter than they might be where they only end with their answers."""
_OLDER_SGLANG: Final = ("spec_accept_token_num", "spec_draft_token_num")
"""What 0.5.9 calls accepted and drafted tokens of an answer."""
Counts = tuple[float, float, float]
"""Rounds, and the tokens that were accepted and drafted in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAcceptance:
    """Rates of one run by `engine`, told by the file `source`.

    Attributes:
        rates: for each drafted place how often it was accepted, given that all before it were.
        how: whether the engine counts by position, or only a mean, which one rate at every position explains.
        num_rounds: verifications that were counted; None where that is not told.
        mean_acceptance_length: committed tokens per verification, on average.
        drafted: tokens of a draft, on average, where only means are counted.
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
        """What a verification commits; and what the rates come to where drafts are of other lengths than they."""
        told, of_rates = f"{self.mean_acceptance_length:.2f} tokens per verification", _committed(self.rates)
        if self.drafted is None or abs(of_rates - self.mean_acceptance_length) < _TOLD:
            return told
        return (
            f"{told} of {self.drafted:.3g} drafted on average, and {of_rates:.2f} of {len(self.rates)} by these rates"
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
        """Return rates from how often a position was accepted with all before it: numbers that fall from `out_of`."""
        field = "accepted by position"
        at = PageRow(row.path, row.line, {field: list(shares)})
        numbers = [out_of, *(_number(one) for one in shares)]
        if not 0 < len(shares) <= MAX_WINDOW or out_of <= 0:
            raise at.wrong(field, f"1 to {MAX_WINDOW} places, of a round or more")
        if not all(0 <= later <= before * (1 + 1e-9) for before, later in pairwise(numbers)):
            raise at.wrong(field, f"numbers that fall from place to place, from {out_of:g} at most to 0 at least")
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
        """Return rates as `of_shares`; where drafts ended before the last place one as `of_counts`.

        A token that was not drafted was not refused.
        """
        rounds, _, drafted = counts
        if not by_place or drafted < (1 - _SHORTER) * rounds * len(by_place):
            return cls.of_counts(row, engine, counts)
        return cls.of_shares(engine, row, by_place, num_rounds=round(rounds), out_of=out_of or rounds)

    @classmethod
    def of_counts(cls, row: PageRow, engine: str, counts: Counts, *, window: int | None = None) -> "EngineAcceptance":
        """Return the one rate that explains how many tokens some rounds (at least one) accepted of those drafted."""
        rounds, accepted, drafted = counts
        mean_length = 1 + accepted / rounds
        return cls.of_mean(engine, row.path, mean_length, drafted=window or drafted / rounds, num_rounds=rounds)

    @classmethod
    def of_mean(
        cls, engine: str, path: Path, mean_length: float, *, drafted: float | None, num_rounds: float | None = None
    ) -> "EngineAcceptance":
        """Return the one rate at which `drafted` tokens commit `mean_length` tokens on average, if any.

        Of drafts of several lengths (llama.cpp's `--spec-draft-p-min`) `drafted` is the mean: where it is 2.4, four of
        ten are taken to have a third token.
        """
        if drafted is None:
            msg = f"{path}: gives {mean_length:.3g} tokens per verification, and not how many were drafted"
            raise ConfigError(f"{msg}; say them: --window 4")
        if not 0 < drafted <= MAX_WINDOW or not 1 <= mean_length <= drafted + 1 + 1e-6:
            msg = f"{path}: {mean_length:.4g} committed tokens per verification of {drafted:.4g} drafted ones"
            expected = f"at most {MAX_WINDOW} drafted ones, and at most one token more than these"
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
    """Return the tokens that a verification commits on average where every place of its draft has a rate."""
    return 1.0 + sum(accumulate(rates, mul), 0.0)


def _number(value: Any) -> float:
    """Return a number; NaN for anything else, and for a whole number that is too large for a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max
    return float(value) if is_number else nan


def is_answers(page: Page) -> bool:
    """Return whether an entry of a page is an answer with figures of speculation, which short answers may lack."""
    return any(_part(row, *where) is not None for row in page.rows for where in _PARTS)


def read_answers(page: Page, told: Told) -> Iterator[EngineAcceptance]:
    """Yield the acceptance of each engine over all its answers."""
    for where, read in _PARTS.items():
        parts = [part for part in (_part(row, *where) for row in page.rows) if part is not None]
        if parts:
            yield read(parts, told.window)


def _llama_server(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    """Read answers: a round commits its accepted tokens and one more; an answer's first token is the prompt's."""
    drafted, accepted, new = (sum(one.count(name) for one in parts) for name in _TIMINGS)
    rounds = new - len(parts) - accepted
    if rounds <= 0 or accepted > drafted:
        raise parts[0].wrong("draft_n_accepted", f"fewer than the {new} predicted_n and at most the {drafted} draft_n")
    return EngineAcceptance.of_counts(parts[0], "llama.cpp", (rounds, accepted, drafted), window=window)


def _vllm(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    by_step, counted = "per_step_accepted", ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    for one in parts:
        if not isinstance(one.fields.get(by_step) or [], list):
            raise one.wrong(by_step, "a list of accepted tokens")
    steps = [accepted for one in parts for accepted in one.fields.get(by_step) or []]
    if steps and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _MOST for one in steps):
        for one in parts:
            if own := one.fields.get(by_step):
                _require_total(one, counted[0], len(own), by_step)
                _require_total(one, counted[1], sum(own), by_step)
        most = window or max(one.count("num_spec_tokens") if "num_spec_tokens" in one.fields else 0 for one in parts)
        places = range(min(most or max(steps), MAX_WINDOW + 1))  # one more is refused
        by_place = [sum(one > place for one in steps) for place in places]
        drafted = sum(one.count(counted[-1]) for one in parts) if counted[-1] in parts[0].fields else inf
        return EngineAcceptance.of_places("vllm", parts[0], by_place, (len(steps), sum(steps), drafted))
    return _of_counts("vllm", parts, window, counted, "a step or more")


def _sglang(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    is_older = _OLDER_SGLANG[0] in parts[0].fields
    tokens = _OLDER_SGLANG if is_older else ("spec_num_correct_drafts", "spec_num_proposed_drafts")
    return _of_counts("sglang", parts, window, ("spec_verify_ct", *tokens), "a verification or more")


def _of_counts(
    engine: str, parts: list[PageRow], window: int | None, counted: tuple[str, str, str], least: str
) -> EngineAcceptance:
    rounds, accepted, drafted = (sum(one.count(name) for one in parts) for name in counted)
    if not rounds:
        raise parts[0].wrong(counted[0], least)
    return EngineAcceptance.of_counts(parts[0], engine, (rounds, accepted, drafted), window=window)


_MOST: Final = 1024
_TIMINGS: Final = ("draft_n", "draft_n_accepted", "predicted_n")
_PARTS: Final[dict[tuple[str, ...], Callable[[list[PageRow], int | None], EngineAcceptance]]] = {
    ("timings", "draft_n"): _llama_server,
    ("metrics", "speculative_decoding", "num_spec_steps"): _vllm,
    ("meta_info", "spec_verify_ct"): _sglang,
}
"""Where each engine says it: the path to the first field, and what reads all of them."""


def _part(row: PageRow, *where: str) -> PageRow | None:
    """Return the map that holds the last field of a path; None where there is none."""
    value: Any = row.fields
    for name in where[:-1]:
        value = value.get(name) if isinstance(value, dict) else None
    return PageRow(row.path, row.line, value) if isinstance(value, dict) and where[-1] in value else None


_LINE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
_POSITION: Final = re.compile(r'(?:^|,)\s*position="(\d{1,4})"')
_COUNTING: Final = {"vllm": "vllm:spec_decode_", "llama.cpp": "llamacpp:spec_decode_"}
_SGLANG: Final = "sglang:spec_"
_TRTLLM: Final = "trtllm_spec_decode_"
_KNOWN: Final = (*_COUNTING.values(), _SGLANG, _TRTLLM)


def is_metrics(page: Page) -> bool:
    """Return whether a page holds metrics of a known engine."""
    return any(line.startswith(("# HELP", "# TYPE", *_KNOWN)) for line in page.text.splitlines()[:2000])


def read_metrics(page: Page, told: Told) -> Iterator[EngineAcceptance]:
    """Yield what each engine accepted; a page may not tell how many tokens were drafted."""
    values, places, lines = _values(page)
    everything = PageRow(page.path, min(lines.values(), default=1), values)
    for engine, prefix in _COUNTING.items():
        if f"{prefix}num_drafts" in values:
            if of_places := places[prefix]:
                field = f"{prefix}num_accepted_tokens"
                total = PageRow(page.path, lines.get(field, everything.line), values)
                by_place = sum(of_places.values())
                _require_total(total, field, by_place, f"{field}_per_pos", off_by=_TOLERANCE * by_place)
            yield _counted(engine, prefix, everything, of_places)
    if f"{_SGLANG}accept_length" in values:
        mean = everything.number(f"{_SGLANG}accept_length", least=1)
        # not by accept_rate: older servers count the target's own token in it, among the accepted and the drafted ones
        drafted = told.window or values.get(f"{_SGLANG}num_steps")
        rounds = values.get(f"{_SGLANG}verify_calls")
        yield EngineAcceptance.of_mean("sglang", page.path, mean, drafted=drafted, num_rounds=rounds)
    if f"{_TRTLLM}acceptance_length" in values:
        mean = everything.number(f"{_TRTLLM}acceptance_length", least=1)
        accepted = everything.number(f"{_TRTLLM}num_accepted_tokens")
        rounds = accepted / (mean - 1) if mean > 1 else 0.0
        drafted = told.window or (everything.number(f"{_TRTLLM}num_draft_tokens") / rounds if rounds else None)
        yield EngineAcceptance.of_mean("tensorrt-llm", page.path, mean, drafted=drafted, num_rounds=rounds)


def _counted(engine: str, prefix: str, values: PageRow, places: dict[int, float]) -> EngineAcceptance:
    rounds = values.count(f"{prefix}num_drafts", least=1)
    accepted, drafted = (values.number(f"{prefix}num_{what}_tokens") for what in ("accepted", "draft"))
    by_place = [places.get(place, 0.0) for place in range(max(places, default=-1) + 1)]
    return EngineAcceptance.of_places(engine, values, by_place, (rounds, accepted, drafted))


def _require_total(row: PageRow, field: str, found: float, counted: str, *, off_by: float = 0.0) -> None:
    """Raise `ConfigError` where a total that is told is not what is counted one by one.

    A server goes on counting while a page of its metrics is written, so these two may be a little off.
    """
    if field in row.fields and abs(row.number(field) - found) > off_by:
        raise row.wrong(field, f"{found:g}, as {counted} tells")


def _values(page: Page) -> tuple[dict[str, float], dict[str, dict[int, float]], dict[str, int]]:
    """Return the metrics of speculation by name, those by position, and the first line of each name.

    Counters of several workers are added up; of means and settings the first one is taken.
    """
    values = dict[str, float]()
    places = defaultdict[str, dict[int, float]](dict)
    lines = dict[str, int]()
    for number, line in enumerate(page.text.splitlines(), 1):
        if not line.startswith(_KNOWN):
            continue
        found = _LINE.match(line.strip())
        if found is None:
            raise PageRow(page.path, number, {"line": line}).wrong("line", "a metric's name, its labels and a number")
        name = found["name"].removesuffix("_total")
        value = PageRow(page.path, number, {name: found["value"]}).number(name)
        lines.setdefault(name, number)
        position = _POSITION.search(found["labels"] or "")
        prefix = next(known for known in _KNOWN if name.startswith(known))
        if position is not None and name.endswith("_per_pos"):
            place = int(position[1])
            places[prefix][place] = places[prefix].get(place, 0.0) + value
        elif name.endswith(("_length", "_rate", "_steps")):
            values.setdefault(name, value)
        elif not name.endswith("_created"):
            values[name] = values.get(name, 0.0) + value
    return values, places, lines


RATES: Final = "conditional_accept_rates"
SHARES: Final = "marginal_accept_rates"
_TOLERANCE: Final = 0.02


def read_speculation_profile(page: Page, _: Told) -> Iterator[EngineAcceptance]:
    """Yield the rates; its own mean must agree with them."""
    for row in page.rows[:1]:
        if row.fields.get("measured") is not True:
            raise row.wrong("measured", "true: a profile that nobody measured says nothing")
        field = RATES if row.fields.get(RATES) else SHARES
        values = row.fields.get(field)
        if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
            raise row.wrong(field, "a list of rates")
        shares = list(accumulate(map(_number, values), mul)) if field == RATES else values
        found = EngineAcceptance.of_shares(str(row.fields.get("method") or "a drafter"), row, shares, num_rounds=None)
        if "mean_accept_length" in row.fields:
            told = row.number("mean_accept_length", least=1)
            if abs(found.mean_acceptance_length / told - 1) > _TOLERANCE:
                raise row.wrong("mean_accept_length", f"{found.mean_acceptance_length:.4g}, as its rates come to")
        yield found
