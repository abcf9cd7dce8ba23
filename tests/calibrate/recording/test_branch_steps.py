"""The steps of branches with streams: the simulated worlds play those that the draft takes for real.

A draft's steps are asked of the draft itself, without lanes: as many as the simulated trace has before each message.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from calibrate.recording.recorder import Recorder
from decoding.schedule import Schedule
from decoding.trace import Trace, Work
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.drafter import Drafter
from sim.evaluator import predict
from sim.world import simulate
from tests.calibrate.recording.test_recorder import PROMPTS as ALL_PROMPTS
from tests.calibrate.recording.test_recorder import SETTINGS, models
from tests.runtime.drafters.language_model.test_branch_streams import Foretelling, Misled
from tests.runtime.drafters.language_model.test_draft_streams import with_streams
from tests.runtime.drafters.language_model.test_drafter import run
from tests.sim.worlds.machines import EXIT_LAYERS, lane, machine

PROMPTS = ALL_PROMPTS[:2]
WINDOW = 4
NUM_LAYERS = 4
DRAFT = {"root_source": "draft", "draft_top_k": 1}
EXIT = {"root_source": "exit", "exit_layer": 3, "exit_top_k": 1}
SOURCES = {
    "draft": DRAFT,
    "exit": EXIT,
    "features": EXIT | {"exit_features": True},
    "hybrid": DRAFT | EXIT | {"root_source": "hybrid"},
}
HITS = {Drafter: None, Foretelling: 9, Misled: 0}
"""How many guesses of a draft are right in a row; None for as many as were recorded."""


class Recorded(NamedTuple):
    models: object
    record: object


@pytest.fixture(scope="module")
def recorded():
    """A draft that can read features; most schedules do without."""
    found = models()
    with_streams(found.draft)
    recorder = Recorder(found, SETTINGS)
    return Recorded(found, recorder.assemble([next(recorder.records([(prompt, 0)])) for prompt in PROMPTS]))


def schedule_of(source: str, num_streams: int) -> Schedule:
    return Schedule(
        method="mirror",
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=WINDOW,
        draft_streams=num_streams,
        **SOURCES[source],
    )


def taught(record, hits):
    """The record of a draft whose streams are as often right."""
    if hits is None:
        return record
    prompts = [
        replace(
            one,
            stream_hits=np.full_like(one.stream_hits, hits),
            feature_stream_hits=np.full_like(one.feature_stream_hits, hits),
        )
        for one in record.prompts
    ]
    return replace(record, prompts=tuple(prompts))


def profile(layer_s: float):
    """Steps of the draft take a second, and one more for the streams; nothing else takes any time."""
    parts = {"lm_head": 0.0, "exit": 0.0, "draft_step": 1.0, "draft_step_features": 1.0, "draft_streams": 1.0}
    lanes = [lane(name, layer=layer_s, **parts) for name in ("target", "draft")]
    lanes = [one.model_copy(update={"exit": {EXIT["exit_layer"]: one.exit[EXIT_LAYERS[0]]}}) for one in lanes]
    return machine(*lanes).model_copy(update={"num_layers": NUM_LAYERS})


def drafted(trace: Trace, round_: int, *works: Work) -> list[int]:
    return [span.rows for span in trace.spans if span.lane == "draft" and span.round == round_ and span.work in works]


class Played:
    """One prompt decoded by the models themselves, each round with the branch steps of a simulated one."""

    def __init__(self, of: type[Drafter], schedule: Schedule, recorded: Recorded, prompt) -> None:
        self.schedule, self.drafter, self.ids = schedule, of(recorded.models.draft), list(prompt.ids)
        self.target = recorded.models.target
        layers = recorded.models.feature_layers if schedule.exit_features else ()
        features = self.target.prefill(self.ids, capacity=60, feature_layers=layers)
        self.drafter.prefill(self.ids, schedule=schedule, capacity=60, features_TE=features)
        self.rows, self.window = run(self.drafter.rollout())

    def round(self, trace: Trace, index: int) -> list[int]:
        """Rows of the branch steps."""
        schedule, branches, rows = self.schedule, BranchSet(self.drafter, self.schedule), []
        steps = [span for span in trace.spans if span.round == index and span.work is Work.BRANCH_STEP]
        signal = None
        if schedule.uses_exit:
            num_candidates = schedule.num_exit_candidates
            signal = self.target.prefix(self.window, schedule.exit_layer, num_candidates)
            [sent] = [span.end_s for span in trace.spans if span.round == index and span.work is Work.PREFIX]
        for span in steps:
            if signal is not None and span.start_s >= sent:
                branches.join(signal)
                signal = None
            if branches.has_work:
                rows.append(branches.step())
        if signal is not None:
            branches.join(signal)
        verdict = self.target.suffix() if schedule.uses_exit else self.target.verify(self.window)
        self.hit, left = branches.take((verdict.num_accepted, verdict.next_token))
        self.rows, self.window = run(left)
        return rows


def every_round(of, schedule, recorded, layer_s):
    """(simulated trace, round, played prompt, rows of its branch steps) of every round but each text's last."""
    for prompt, trace in zip(
        PROMPTS, simulate(schedule, profile(layer_s), taught(recorded.record, HITS[of])), strict=True
    ):
        played = Played(of, schedule, recorded, prompt)
        assert drafted(trace, 0, Work.ROLLOUT_STEP) == played.rows
        for index in range(len(trace.rounds) - 1):
            yield trace, index, played, played.round(trace, index)


ALWAYS_OR_NEVER = [(of, *how) for of in (Foretelling, Misled) for how in ((3, 0.4), (1, 1.3), (3, 9.0))]
NOW_AND_THEN = [(Drafter, 3, layer_s) for layer_s in (0.4, 1.3, 9.0)]


@pytest.mark.parametrize(("of", "num_streams", "layer_s"), [*ALWAYS_OR_NEVER, *NOW_AND_THEN])
@pytest.mark.parametrize("source", SOURCES)
def test_every_step_is_the_one_that_was_simulated(recorded, source, of, num_streams, layer_s):
    """If streams are right now and then, branches may end sooner than the slowest recorded one, never later."""
    for trace, index, played, rows in every_round(of, schedule_of(source, num_streams), recorded, layer_s):
        branch_rows = drafted(trace, index, Work.BRANCH_STEP)
        assert len(rows) <= len(branch_rows) if of is Drafter else len(rows) == len(branch_rows)
        if source != "hybrid":  # how many of the exit's roots are not the draft's is an estimate
            assert rows == branch_rows[: len(rows)]
        assert trace.rounds[index].hit == played.hit
        assert drafted(trace, index + 1, Work.FINISH_STEP, Work.ROLLOUT_STEP) == played.rows


@pytest.mark.parametrize("source", SOURCES)
def test_streams_that_are_always_right_hide_more_than_those_that_never_are(recorded, source):
    schedule = schedule_of(source, 3)
    times = [predict(schedule, profile(1.3), taught(recorded.record, hits)).decode_s for hits in (9, 0)]
    assert times[0] < times[1]
