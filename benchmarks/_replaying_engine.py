"""An engine whose acceptance is known before it runs: what a large pair with random weights is measured with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import _common  # noqa: F401  # finds the packages of this tree

from calibrate.prompts import EncodedPrompt
from decoding.schedule import Schedule
from mirrorsd.model_pair import ModelPair, folder_of
from mirrorsd.text_engine import arbitrary_prompt, prompts_of, replayed_texts, vocab_size_of
from runtime.engine import Engine, Generation
from runtime.lanes.lane import LaneSpec
from runtime.lanes.sequence_lanes import NOBODY
from runtime.verification.replayed_text import ReplayedText
from sim.acceptance.replay import Acceptance

_DRAFT_DEADLINE_S: Final = 20.0
"""A lane of a large pair takes minutes to load again, so a pause of the machine must not cost it."""


class ReplayingEngine(Engine):
    """An engine that knows the acceptance of some prompts: it replays these, by any schedule, and decodes all others.

    So whatever runs an engine's schedules runs them with an acceptance known before, and its lanes can be calibrated
    as any others. A context manager.

    Attributes:
        prompts: those that are replayed: ids that nobody wrote, no two alike.
    """

    def __init__(self, pair: ModelPair, lanes: Sequence[LaneSpec], acceptance: Acceptance) -> None:
        """Prepare; models, whose weights may be random, are loaded when they are needed."""
        super().__init__(
            pair.target_folder,
            lanes=lanes,
            drafter_folder=folder_of(pair.drafter),
            exits_folder=folder_of(pair.exits),
            dtype=pair.dtype,
            draft_deadline_s=_DRAFT_DEADLINE_S,
        )
        self._acceptance, self._vocab_size = acceptance, vocab_size_of(pair)
        self._texts: dict[Schedule, list[ReplayedText]] = {}
        plain = Schedule(method="autoregressive", target_lane=lanes[0].name)
        lengths = [text.prompt_length for text in self._texts_of(plain)]
        self.prompts = tuple(
            EncodedPrompt(one.prompt_id, one.category, arbitrary_prompt(length, self._vocab_size, number=number))
            for number, (one, length) in enumerate(zip(prompts_of(acceptance), lengths, strict=True), 1)
        )
        self._places = {prompt.ids: place for place, prompt in enumerate(self.prompts)}

    def generate(self, schedule: Schedule, prompt: Sequence[int], *, max_new_tokens: int, **options: Any) -> Generation:
        """Replay one of `prompts`, at most `max_new_tokens` of it, or decode another one as `Engine.generate` does."""
        place = self._places.get(tuple(prompt))
        if place is None:
            return super().generate(schedule, prompt, max_new_tokens=max_new_tokens, **options)
        text = self._texts_of(schedule)[place].cut(max_new_tokens)
        return self.replay(schedule, prompt, text, listener=options.get("listener", NOBODY))

    def _texts_of(self, schedule: Schedule) -> list[ReplayedText]:
        if schedule not in self._texts:
            self._texts[schedule] = replayed_texts(self._acceptance, schedule, vocab_size=self._vocab_size)
        return self._texts[schedule]
