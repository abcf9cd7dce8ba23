"""The event world: runs a method's generator on simulated lanes (SimPy) and returns traces."""

from collections.abc import Mapping

from costs.cost_model import LaneCost
from costs.durations import DurationTables
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from sim.acceptance.replay import Acceptance, replay_of
from sim.events.round_costs import RoundCosts
from sim.events.simulated_batch import SimulatedBatch


def simulate(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance,
    *,
    max_new_tokens: int | None = None,
    trace: bool = True,
    costs: Mapping[str, LaneCost] | None = None,
) -> list[Trace]:
    """Simulate `schedule` on `profile`; return one trace per prompt, each starting at time zero.

    `trace=False` omits spans but not rounds. If the prefill of any prompt was not measured, `prefill_s` is None in all
    traces. Other arguments and errors are those of `sim.evaluator.predict`.
    """
    replay = replay_of(acceptance)
    contexts, outcomes = replay.contexts(max_new_tokens), replay.outcomes(schedule, max_new_tokens)
    tables = DurationTables(profile, contexts, costs)
    plan = tables.durations(schedule, replay.shape(schedule)).plan
    round_costs = RoundCosts(schedule, plan, tables)
    traces = [
        SimulatedBatch(schedule, round_costs, outcomes, [prompt], has_spans=trace).play()[0]
        for prompt in range(len(outcomes.starts))
    ]
    prefills_s = tables.prefill.known(schedule, outcomes.prompt_lengths)
    for prompt, played in enumerate(traces):
        played.prefill_s = None if prefills_s is None else prefills_s[prompt]
    return traces
