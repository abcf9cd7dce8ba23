"""The page of a search: one HTML file that opens offline."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from markupsafe import Markup

from costs.prices import Prices
from decoding.errors import ProfileError
from planner.first_of_each import first_of_each
from planner.page_template import rendered
from planner.pictures.plan_pictures import costs_over_rows, first_rounds, machine_of
from planner.plan import Plan
from planner.report.curves import sweep_picture
from planner.search.search import Candidate
from planner.what_if.mixed_record import whose_tokens
from sim.derived.calibrated_lanes import calibrated_platform

_MOST_ROWS: Final = 30


def search_page(plan: Plan) -> str:
    """Return the page: the answer, the machine, the first rounds, sensitivity, and the ranking."""
    profile, record, best = plan.profile, plan.record, plan.recommended.schedule
    names = plan.search.names
    leaders = _leaders(plan)
    drafter = record.drafter if record.assumed is None else None
    return rendered(
        Path(__file__).with_name("search_page.html"),
        plan=plan,
        verdict=plan.verdict,
        models=f"{_target(plan)} with {drafter or profile.drafter or 'no draft model'}",
        machine=_machine(plan),
        first_rounds=first_rounds(best, profile, record),
        drafts=best.num_speculative_tokens > 0,
        costs_over_rows=costs_over_rows(
            Prices(profile), (one.schedule.target_lane for one in leaders), float(record.contexts.start)
        ),
        over_acceptance=[
            sweep_picture(sweep, whose_tokens(record))
            for sweep in plan.sensitivity.sweeps
            if sweep.quantity == "acceptance"
        ],
        rows=[(names[one.schedule], one) for one in leaders],
        slowest_s=max(one.tpot_s for one in leaders),
        left_out=sorted(plan.search.left_out.items(), key=lambda reason: -reason[1]),
    )


def _leaders(plan: Plan) -> list[Candidate]:
    """Return the fastest schedule of every method, root source, placement and target lane."""

    def kind(one: Candidate) -> tuple[object, ...]:
        return one.schedule.method, one.schedule.root_source, one.placement, one.schedule.target_lane

    return first_of_each(plan.search.candidates, kind)[:_MOST_ROWS]


def _target(plan: Plan) -> str:
    """Return the target's name: the profile's where the record has assumed acceptance and thus no model."""
    return str(plan.profile.target if plan.record.assumed else plan.record.target)


def _machine(plan: Plan) -> Markup | None:
    """Return a picture of the lanes and what the recommended schedule runs on each; None if they form no platform."""
    best = plan.recommended.schedule
    with suppress(ProfileError):
        models = _target(plan), str(best.drafter)
        return machine_of(calibrated_platform(plan.profile), plan.profile, best, models)
    return None
