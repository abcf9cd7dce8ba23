"""Sequences that repeat themselves: whatever drafts guesses these easily, and other sequences are not so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from planner.paired_ratio import Ratio, paired_ratio
from planner.search.comparison import comparer
from planner.search.halves import judging_part
from planner.verdict import times
from planner.wording import listing

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from mirrorsd.compare.measured_answer import JudgedRuns
    from planner.plan import Plan

_MOST_NAMES: Final = 3


def repeating_sentence(names: Sequence[str], num_texts: int, ratio: Ratio | None = None) -> str:
    """Warn of sequences that repeat themselves; `ratio` is drafting next to plain decoding on the others, if known."""
    shown = [*names[:_MOST_NAMES], *(["others"] if len(names) > _MOST_NAMES else [])]
    without = "" if ratio is None else f"; without them drafting has {times(ratio)} the speed of plain decoding"
    return f"{len(names)} of {num_texts} answers repeat themselves, which is easy to draft ({listing(shown)}){without}."


def predicted_on_repeating(plan: Plan) -> str | None:
    """Return that warning for a prediction; None where nothing repeats itself, or all sequences are drawn."""
    judged = judging_part(plan.record)
    repeating = [prompt.name for prompt in judged.prompts if prompt.repeats_itself]
    if not repeating or plan.record.assumed is not None:
        return None
    others = tuple(prompt for prompt in judged.prompts if prompt.name not in repeating)
    plain, drafting = plan.judged.result.best(kind="plain"), plan.judged.result.best_drafting()
    ratio = None
    if others and plain is not None and drafting is not None:
        compare = comparer(plan.profile, replace(judged, prompts=others))
        ratio = compare(drafting.schedule, plain.schedule)
    return repeating_sentence(repeating, len(judged.prompts), ratio)


def measured_on_repeating(judged: JudgedRuns, record: AcceptanceRecord) -> tuple[list[str], Ratio | None]:
    """Return the prompts that were run whose texts repeat themselves, and what drafting is worth on the others.

    That is the speed of the drafting schedule predicted fastest over that of the plain one, on the prompts that both
    ran; None if one of them or all other prompts are missing.
    """
    texts = record.prompts[: judged.measured.num_prompts]
    others = [place for place, prompt in enumerate(texts) if not prompt.repeats_itself]
    results = sorted(judged.results, key=lambda one: one.predicted_s)
    plain, drafting = (
        next((one for one in results if (one.candidate.schedule.traits.window == "none") == is_plain), None)
        for is_plain in (True, False)
    )
    ratio = None
    if plain is not None and drafting is not None:
        num_shared = min(len(plain.measured), len(drafting.measured))
        if shared := [place for place in others if place < num_shared]:
            ratio = paired_ratio(*([one.measured[place].decode_s for place in shared] for one in (drafting, plain)))
    return [prompt.name for prompt in texts if prompt.repeats_itself], ratio
