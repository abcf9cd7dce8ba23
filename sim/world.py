"""The event world: plays a method's own generator over simulated lanes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, cast

from simpy import Environment, Event

from costs.cost_model import LaneCost
from costs.durations import DurationTables
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from sim.acceptance.acceptance_model import Acceptance
from sim.acceptance.replay import as_acceptance
from sim.events.event_lanes import SimulatedLanes
from sim.events.simulated_sequence import RoundCosts, SimulatedSequence


def simulate(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance | AcceptanceRecord,
    *,
    max_new_tokens: int | None = None,
    trace: bool = True,
    costs: Mapping[str, LaneCost] | None = None,
) -> list[Trace]:
    """Play `schedule` on `profile`; one trace per prompt, each from time zero.

    Arguments and errors are those of `sim.evaluator.evaluate`; `trace` is whether the traces hold a span for every
    operation and draft step. Rounds are there anyway. Where the prefill of a prompt was not
    measured, that of all traces is None.
    """
    acceptance = as_acceptance(acceptance)
    tables = DurationTables(profile, acceptance.contexts(max_new_tokens), costs)
    lists = RoundCosts(tables.durations(schedule, acceptance.shape(schedule)))
    guessing = acceptance.guessing(schedule)
    traces = []
    prompts = acceptance.answers(schedule, max_new_tokens)
    prefills_s = tables.prefill.known(schedule, [answers.prompt_length for answers in prompts])
    for prompt, answers in enumerate(prompts):
        guesses = None if guessing is None else partial(guessing.rows, prompt)
        env = Environment()
        sequence = SimulatedSequence(env, schedule, lists, answers, prompt=prompt, guesses=guesses, has_spans=trace)
        flow = schedule.traits.flow(SimulatedLanes(sequence), schedule)
        env.process(cast("Generator[Event, Any, None]", flow))
        env.run()
        played = sequence.finish()
        played.prefill_s = None if prefills_s is None else prefills_s[prompt]
        traces.append(played)
    return traces
