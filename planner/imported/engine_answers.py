"""Answers of engines that say how their speculation went: llama-server, vLLM and SGLang, one answer or one a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from planner.imported.accepted import EngineAcceptance
from planner.imported.engine_page import Page, PageRow


def is_answers(page: Page) -> bool:
    """Return whether the first entry of a page is an answer with a word on speculation."""
    return any(_part(row, *where) is not None for row in page.rows[:1] for where in _PARTS)


def read_answers(page: Page, window: int | None) -> Iterator[EngineAcceptance]:
    """Yield what all answers of each engine come to."""
    for where, read in _PARTS.items():
        parts = [part for part in (_part(row, *where) for row in page.rows) if part is not None]
        if parts:
            yield read(parts, window)


def _llama_server(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    """Every round commits what was accepted and one token more, so that rounds are the new tokens less those."""
    drafted, accepted, new = (sum(one.count(name) for one in parts) for name in _TIMINGS)
    rounds = new - accepted
    if rounds <= 0 or accepted > drafted:
        raise parts[0].wrong("draft_n_accepted", f"fewer than the {new} predicted_n and at most the {drafted} draft_n")
    return EngineAcceptance.of_mean(
        "llama.cpp", parts[0].path, 1 + accepted / rounds, drafted=window or drafted / rounds, num_rounds=rounds
    )


def _vllm(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    steps = [accepted for one in parts for accepted in one.fields.get("per_step_accepted") or ()]
    if steps and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _MOST for one in steps):
        most = window or max(one.count("num_spec_tokens") if "num_spec_tokens" in one.fields else 0 for one in parts)
        by_place = [sum(one > place for one in steps) for place in range(most or max(steps))]
        return EngineAcceptance.of_shares("vllm", parts[0], by_place, num_rounds=len(steps), out_of=len(steps))
    rounds, accepted, drafted = (sum(one.count(name) for one in parts) for name in _STEPS)
    if not rounds:
        raise parts[0].wrong(_STEPS[0], "a step or more")
    return EngineAcceptance.of_mean(
        "vllm", parts[0].path, 1 + accepted / rounds, drafted=window or drafted / rounds, num_rounds=rounds
    )


def _sglang(parts: list[PageRow], window: int | None) -> EngineAcceptance:
    rounds, accepted, drafted = (sum(one.count(name) for one in parts) for name in _VERIFIED)
    if not rounds:
        raise parts[0].wrong(_VERIFIED[0], "a verification or more")
    return EngineAcceptance.of_mean(
        "sglang", parts[0].path, 1 + accepted / rounds, drafted=window or drafted / rounds, num_rounds=rounds
    )


_MOST: Final = 1024
_TIMINGS: Final = ("draft_n", "draft_n_accepted", "predicted_n")
_STEPS: Final = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
_VERIFIED: Final = ("spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts")
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
