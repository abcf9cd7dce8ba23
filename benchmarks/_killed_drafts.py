"""Decode prompts while the draft's lane is killed, at a random token of every text."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from typing import NamedTuple

from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener


def can_lose_its_draft(schedule: Schedule) -> bool:
    """Whether a draft has a lane of its own, and the text has to stay as it is without it: a tree's need not."""
    return schedule.draft_lane is not None and not schedule.is_pooled and not schedule.is_tree


class Killed(NamedTuple):
    """What came of a schedule's prompts, the draft's lane being killed in every one of them.

    Attributes:
        texts_equal: texts that are those of plain decoding all the same.
        num_lost_drafts: prompts, as their traces say, that the target ended alone.
    """

    texts_equal: int
    num_lost_drafts: int


def with_kills(
    engine: Engine,
    schedule: Schedule,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[tuple[int, ...]],
    moments: random.Random,
) -> Killed:
    """Decode every prompt and kill the draft's lane meanwhile, once, after a random number of committed tokens.

    Args:
        engine: its lanes; it starts the lost one again for the next prompt.
        schedule: with a draft in a lane of its own.
        prompts: token ids.
        texts: of plain decoding.
        moments: what the numbers of tokens, from 1 to all of a text, are drawn from.
    """
    texts_equal = num_lost_drafts = 0
    for prompt, text in zip(prompts, texts, strict=True):
        kill = _Kill(engine, schedule, after=moments.randint(1, len(text)))
        made = engine.generate(schedule, prompt, max_new_tokens=len(text), listener=Listener(on_tokens=kill))
        texts_equal += made.tokens == text
        num_lost_drafts += made.trace.has_loss
    return Killed(texts_equal=texts_equal, num_lost_drafts=num_lost_drafts)


class _Kill:
    """Ends the process of the draft's lane once so many tokens are committed."""

    def __init__(self, engine: Engine, schedule: Schedule, *, after: int) -> None:
        assert schedule.draft_lane is not None, "a draft's lane"
        self._lane, self._left = engine.lane(schedule.draft_lane), after

    def __call__(self, tokens: tuple[int, ...]) -> None:
        is_time = 0 < self._left <= len(tokens)
        self._left -= len(tokens)
        if is_time and (process := self._lane.process_id) is not None:
            os.kill(process, signal.SIGKILL)
