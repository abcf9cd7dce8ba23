"""Report data from the made-up machine: real search and simulation, and a "real" world that is a bit different."""

from __future__ import annotations

from dataclasses import replace

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from planner.comparison import comparer
from planner.report_data import ReportData, ScheduleResult
from planner.scaled_profile import with_speed
from planner.search import pick_demo_schedules, search
from planner.sensitivity import analyse
from planner.space import SearchSpace
from planner.upper_bounds import overlap_bound
from planner.verdict import judge
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine


def report_data(
    profile: Profile | None = None,
    record: AcceptanceRecord | None = None,
    *,
    space: SearchSpace | None = None,
    num_repeats: int = 3,
) -> ReportData:
    """The whole way from a profile and a record to what a report shows; `num_repeats` 0 runs nothing."""
    profile = profile or machine(pooled_speed=1.15)
    record = record or acceptance_record(num_prompts=6, num_tokens=96)
    found = search(space or SearchSpace(), profile, record)
    sensitivity = analyse(found, profile, record)
    mirror = found.best(method="mirror")
    bound = mirror and overlap_bound(
        mirror.schedule, profile, record, mean_acceptance_length=mirror.prediction.mean_acceptance_length
    )
    results = tuple(
        ScheduleResult(
            candidate=candidate,
            simulated=tuple(simulate(candidate.schedule, profile, record)),
            measured=tuple(measure(candidate.schedule, profile, record, repeat) for repeat in range(num_repeats)),
        )
        for candidate in pick_demo_schedules(found)
    )
    return ReportData(
        title="Synthetic machine",
        created="21 November 2025, 10:00",
        profile=profile,
        record=record,
        search=found,
        sensitivity=sensitivity,
        bound=bound,
        verdict=judge(found, profile, comparer(profile, record), sensitivity, bound),
        results=results,
        footnotes=("All of this is made up.",),
    )


def measure(schedule: Schedule, profile: Profile, record: AcceptanceRecord, repeat: int) -> tuple[Trace, ...]:
    """A world whose target is somewhat slower than calibrated and whose draft is somewhat faster."""
    slower = with_speed(with_speed(profile, "target", 0.985 - 0.006 * repeat), "draft", 1.03)
    return tuple(replace(trace, world="measured") for trace in simulate(schedule, slower, record))
