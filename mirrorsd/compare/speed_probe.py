"""How fast the machine is right now: short known work on the lanes of a schedule.

A shared machine changes its speed within seconds. Work whose time the profile knows, done right before and right
after a run, tells the speed at which that run was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from calibrate.profiling.anchors import Anchors
from decoding.metrics import tpot_s
from decoding.record import AcceptanceRecord, PromptRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from mirrorsd.compare.runs import SpeedSample

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt
    from runtime.engine import Engine

_PLAIN_TOKENS: Final = 8
"""New tokens of a plain decoding that is done for the speed alone: with its prompt about half a second."""


class TakesAnchors(Protocol):
    """What is asked of `calibrate.profiling.anchors.Anchors`."""

    def take(self, lane: str) -> float:
        """Mean seconds of the anchor's work on a lane, now."""
        ...


class SpeedProbe:
    """Times that work whenever asked."""

    def __init__(
        self,
        engine: Engine,
        anchors: TakesAnchors,
        prompt: Sequence[int],
        num_tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take `anchors`, and decode `num_tokens` after `prompt` (that of `probe_prompt`), on lanes of `engine`."""
        self._engine, self._anchors, self._prompt, self._num_tokens = engine, anchors, prompt, num_tokens
        self._clock, self._start_s = clock, clock()

    def now_s(self) -> float:
        """Seconds since there is this probe: the clock of all runs."""
        return self._clock() - self._start_s

    def look(self, *schedules: Schedule) -> tuple[SpeedSample, ...]:
        """An anchor on every lane of the schedules, and a plain decoding on every lane of their targets, now.

        Raises:
            LaneError: a lane was lost.
        """
        samples = []
        targets = {schedule.target_lane for schedule in schedules}
        for lane in dict.fromkeys(lane for schedule in schedules for lane in lanes_of(schedule)):
            self._engine.load_target(lane)
            samples.append(SpeedSample("anchor", lane, self.now_s(), self._anchors.take(lane)))
            if lane in targets:
                plain = Schedule(method="autoregressive", target_lane=lane)
                at_s = self.now_s()
                made = self._engine.generate(plain, self._prompt, max_new_tokens=self._num_tokens)
                samples.append(SpeedSample("plain", lane, at_s, tpot_s([made.trace])))
        return tuple(samples)


def new_probe(
    engine: Engine, profile: Profile, record: AcceptanceRecord, prompts: Sequence[EncodedPrompt]
) -> SpeedProbe:
    """A probe for runs of the first `prompts` of a record, all of which must be given."""
    lanes = {lane.name: engine.lane(lane.name) for lane in profile.lanes}
    ids = {prompt.name: prompt.ids for prompt in prompts}
    anchors = Anchors(lanes, context=anchor_context(profile, record))
    return SpeedProbe(engine, anchors, ids[probe_prompt(record).name], num_plain_tokens(record))


def lanes_of(schedule: Schedule) -> tuple[str, ...]:
    """Lanes that a schedule uses, the target's first."""
    return tuple(dict.fromkeys((schedule.target_lane, schedule.draft_lane or schedule.target_lane)))


def probe_prompt(record: AcceptanceRecord) -> PromptRecord:
    """The prompt whose text's beginning is decoded plainly: the shortest of the record."""
    return min(record.prompts, key=lambda prompt: prompt.prompt_length)


def num_plain_tokens(record: AcceptanceRecord) -> int:
    """How many of its text are."""
    return min(_PLAIN_TOKENS, record.max_new_tokens)


def anchor_context(profile: Profile, record: AcceptanceRecord) -> int:
    """Cached tokens of an anchor: as calibration had it, or, before there were anchors, as the plain decoding has."""
    anchors = [lane.anchor for lane in profile.lanes if lane.anchor is not None]
    return anchors[0].context if anchors else probe_prompt(record).prompt_length
