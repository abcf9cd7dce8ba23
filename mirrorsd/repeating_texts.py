"""What rests on texts that repeat themselves, in words: whatever drafts guesses these, and other texts are not so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from planner.claim import in_words
from planner.search.comparison import comparer
from planner.search.halves import judging_part
from planner.wording import listing

if TYPE_CHECKING:
    from planner.paired_ratio import Ratio
    from planner.plan import Plan

_MOST_NAMES: Final = 3


def texts_in_words(repeating: Sequence[str], num_texts: int) -> str:
    """How many of the texts judged on, and which, as the beginning of a sentence."""
    names = [*repeating[:_MOST_NAMES], *(["others"] if len(repeating) > _MOST_NAMES else [])]
    return f"{len(repeating)} of {num_texts} texts repeat themselves, which drafts guess easily ({listing(names)})"


def without_them(repeating: Sequence[str], num_texts: int, ratio: Ratio | None) -> str:
    """A sentence on them, and on the speed of drafting over plain decoding on the other texts, if that is known."""
    told = texts_in_words(repeating, num_texts)
    return f"{told}." if ratio is None else f"{told}; on the others drafting has {in_words(ratio)} the speed of plain."


def repeating_in_words(plan: Plan) -> str | None:
    """The same of what is predicted on the prompts to judge on; None where no text repeats itself, or all are drawn."""
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
    return without_them(repeating, len(judged.prompts), ratio)
