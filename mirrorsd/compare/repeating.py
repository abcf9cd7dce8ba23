"""Real runs whose sequences repeat themselves, and what drafting is worth on the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from decoding.record import AcceptanceRecord
from mirrorsd.compare.measured_answer import JudgedRuns, ratio_entry
from mirrorsd.repeating_texts import repeating_sentence
from planner.paired_ratio import Ratio, paired_ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeating:
    """The prompts of a comparison whose texts repeat themselves.

    Attributes:
        prompts: their names.
        num_texts: all that were run.
        speedup: on the others, speed of the drafting schedule predicted fastest over that of the plain one; None if
            one of them or all prompts are missing.
    """

    prompts: tuple[str, ...]
    num_texts: int
    speedup: Ratio | None

    @classmethod
    def of(cls, judged: JudgedRuns, record: AcceptanceRecord) -> Self:
        """Those among the prompts that were run, the first ones of the record."""
        texts = record.prompts[: judged.measured.num_prompts]
        others = [place for place, prompt in enumerate(texts) if not prompt.repeats_itself]
        both = sorted(zip(judged.results, judged.comparisons, strict=True), key=lambda one: one[0].predicted_s)
        plain, drafting = (
            next((of for one, of in both if (one.candidate.schedule.traits.window == "none") == is_plain), None)
            for is_plain in (True, False)
        )
        ratio = None
        if others and plain is not None and drafting is not None:
            ratio = paired_ratio(*([one.at_anchor_s[place] for place in others] for one in (drafting, plain)))
        names = tuple(prompt.name for prompt in texts if prompt.repeats_itself)
        return cls(prompts=names, num_texts=len(texts), speedup=ratio)

    def warnings(self) -> Iterator[str]:
        """Warn of them, if there are any."""
        if self.prompts:
            yield repeating_sentence(self.prompts, self.num_texts, self.speedup)

    @property
    def entry(self) -> dict[str, Any]:
        """For scripts."""
        return {"prompts": list(self.prompts), "speedup_without": ratio_entry(self.speedup)}
