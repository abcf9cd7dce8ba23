"""Reads acceptance from answers of llama-server, vLLM and SGLang, and from TensorRT-LLM's iteration statistics."""

from collections.abc import Callable, Iterator
from itertools import count, zip_longest
from math import inf
from operator import mul
from typing import Any, Final

from decoding.schedule import MAX_WINDOW
from planner.imported.engine_acceptance import EngineAcceptance, require_total
from planner.imported.engine_page import Page, PageRow, Told

_OLDER_SGLANG: Final = ("spec_accept_token_num", "spec_draft_token_num")
"""The names of accepted and drafted tokens in SGLang 0.5.9."""


def is_answers(page: Page) -> bool:
    """Return whether any entry of a page is an answer with statistics of speculation (short answers may have none)."""
    return any(_part(row, *where) is not None for row in page.rows for where in _PARTS)


def read_answers(page: Page, told: Told) -> Iterator[EngineAcceptance]:
    """Yield the acceptance of each engine over all its answers."""
    for where, read in _PARTS.items():
        rows = (row for row in page.rows if not row.fields.get("attentionDpRank"))  # ranks above 0 repeat rank 0
        parts = [part for part in (_part(row, *where) for row in rows) if part is not None]
        if parts:
            yield read(parts, told.window)


def _llama_server(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    """Read answers. A round commits its accepted tokens and one more; the first token comes from the prefill."""
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
            own = one.fields.get(by_step)
            if own:
                require_total(one, counted[0], len(own), by_step)
                require_total(one, counted[1], sum(own), by_step)
        most = window or max(one.count("num_spec_tokens") if "num_spec_tokens" in one.fields else 0 for one in parts)
        places = range(min(max(most, *steps), MAX_WINDOW + 1))  # `of_shares` refuses more than MAX_WINDOW
        by_place = [sum(one > place for one in steps) for place in places]
        drafted = sum(one.count(counted[-1]) for one in parts) if counted[-1] in parts[0].fields else inf
        return EngineAcceptance.of_places("vllm", parts[0], by_place, (len(steps), sum(steps), drafted))
    return _of_counts("vllm", parts, window, counted, "acceptance_histogram")


def _sglang(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    is_older = _OLDER_SGLANG[0] in parts[0].fields
    tokens = _OLDER_SGLANG if is_older else ("spec_num_correct_drafts", "spec_num_proposed_drafts")
    return _of_counts("sglang", parts, window, ("spec_verify_ct", *tokens), "spec_correct_drafts_histogram")


def _tensorrt_llm(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    """Read iterations; each verifies one draft of every request that has one."""
    return _of_counts("tensorrt-llm", parts, window, _OF_ITERATIONS)


def _of_counts(
    engine: str, parts: list[PageRow], window: int | None, counted: tuple[str, str, str], histogram: str = ""
) -> EngineAcceptance:
    """Read rounds, accepted and drafted tokens; rates are by position if a histogram of accepted tokens agrees."""
    rounds, accepted, drafted = (sum(one.count(name) for one in parts) for name in counted)
    if not rounds:
        raise parts[0].wrong(counted[0], "one or more")
    by_accepted = [sum(of_all) for of_all in zip_longest(*(_counts(one, histogram) for one in parts), fillvalue=0)]
    if sum(by_accepted) != rounds or sum(map(mul, by_accepted, count())) != accepted:
        return EngineAcceptance.of_counts(parts[0], engine, (rounds, accepted, drafted), window=window)
    longest = max(place for place, of_all in enumerate(by_accepted) if of_all)
    # `of_shares` refuses more than MAX_WINDOW places.
    places = range(min(max(longest, window or round(drafted / rounds)), MAX_WINDOW + 1))
    by_place = [sum(by_accepted[place + 1 :]) for place in places]
    return EngineAcceptance.of_places(engine, parts[0], by_place, (rounds, accepted, drafted))


def _counts(row: PageRow, field: str) -> list[int]:
    """Return a field that is a list of counts; an empty list for anything else."""
    value = row.fields.get(field)
    return value if isinstance(value, list) and all(isinstance(one, int) and one >= 0 for one in value) else []


_MOST: Final = 1024
_OF_ITERATIONS: Final = ("numRequestsWithDraftTokens", "numAcceptedTokens", "numDraftTokens")
_TIMINGS: Final = ("draft_n", "draft_n_accepted", "predicted_n")
_PARTS: Final[dict[tuple[str, ...], Callable[[list[PageRow], int | None], EngineAcceptance]]] = {
    ("timings", "draft_n"): _llama_server,
    ("metrics", "speculative_decoding", "num_spec_steps"): _vllm,
    ("meta_info", "spec_verify_ct"): _sglang,
    ("specDecodingStats", _OF_ITERATIONS[0]): _tensorrt_llm,
}
"""Where each engine puts its statistics (the path to one field of them), and what reads them."""


def _part(row: PageRow, *where: str) -> PageRow | None:
    """Return the map that holds the last field of a path; None where there is none."""
    value: Any = row.fields
    for name in where[:-1]:
        value = value.get(name) if isinstance(value, dict) else None
    return PageRow(row.path, row.line, value) if isinstance(value, dict) and where[-1] in value else None
