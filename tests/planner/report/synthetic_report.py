"""Report data from the made-up machine: real search and simulation, and a "real" world that is a bit different."""

from dataclasses import replace
from typing import Any

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from planner.paired_ratio import Ratio
from planner.plan import make_plan
from planner.report.report_data import ReportData, ScheduleResult
from planner.search.search import pick_demo_schedules
from planner.search.space import SearchSpace
from planner.verdict import PAYS, Claim, SpeculationVerdict
from planner.what_if.sensitivity import with_speed
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, coarse_sweeps, machine


def judged_runs(speedup: Ratio, **more: Any) -> SpeculationVerdict:
    """A verdict after runs of such a ratio."""
    claim = Claim(one="drafting", other="plain", ratio=speedup)
    basis = "measured on made-up prompts"
    return SpeculationVerdict(pays=PAYS[speedup.outcome], claim=claim, basis=basis, world="measured", **more)


def report_data(
    profile: Profile | None = None,
    record: AcceptanceRecord | None = None,
    *,
    space: SearchSpace | None = None,
) -> ReportData:
    """The whole way from a profile and a record to what a report shows."""
    profile = profile or machine(pooled_speed=1.15)
    record = record or acceptance_record(num_prompts=6, num_tokens=96)
    with coarse_sweeps():
        plan = make_plan(space or SearchSpace(), profile, record)
    results = tuple(
        ScheduleResult(
            candidate=candidate,
            simulated=tuple(simulate(candidate.schedule, profile, record)),
            measured=measure(candidate.schedule, profile, record),
            measured_at_anchor_s=candidate.tpot_s / 1.25,
        )
        for candidate in pick_demo_schedules(plan.search)
    )
    return ReportData(
        title="Synthetic machine",
        created="21 November 2025, 10:00",
        plan=plan,
        results=results,
        footnotes=("All of this is made up.",),
    )


def measure(schedule: Schedule, profile: Profile, record: AcceptanceRecord) -> tuple[Trace, ...]:
    """A world whose target is somewhat slower than calibrated and whose draft is somewhat faster."""
    slower = with_speed(with_speed(profile, "target", 0.985), "draft", 1.03)
    return tuple(replace(trace, world="measured") for trace in simulate(schedule, slower, record))
