"""The whole way from a machine and a record to an answer: search, what-if, bound and verdict."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from planner.search.comparison import comparer
from planner.search.search import SearchResult, search
from planner.search.space import SearchSpace
from planner.upper_bounds import OverlapBound, overlap_bound
from planner.verdict import PlanVerdict, judge
from planner.what_if.sensitivity import Sensitivity, analyse


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was found, and what it means.

    Attributes:
        profile, record: what it was made from.
        search: all schedules, ranked.
        sensitivity: what would have to change.
        bound: the limit of the best mirror schedule; None if there is none.
        verdict: the answer in words.
    """

    profile: Profile
    record: AcceptanceRecord
    search: SearchResult
    sensitivity: Sensitivity
    bound: OverlapBound | None
    verdict: PlanVerdict

    def __repr__(self) -> str:
        """In a line: tables and records would fill pages."""
        return f"<Plan of {len(self.search.candidates)} schedules: {self.verdict.headline}>"


def make_plan(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> Plan:
    """Search `space` on `profile` and `record`, and judge what comes out.

    Raises:
        PlanError: nothing in the space can be priced by the profile and the record.
    """
    found = search(space, profile, record)
    sensitivity = analyse(found, profile, record)
    mirror = found.best(method="mirror")
    bound = None
    if mirror is not None:
        length = mirror.prediction.mean_acceptance_length
        bound = overlap_bound(mirror.schedule, profile, record, mean_acceptance_length=length)
    return Plan(
        profile=profile,
        record=record,
        search=found,
        sensitivity=sensitivity,
        bound=bound,
        verdict=judge(found, profile, comparer(profile, record), sensitivity, bound),
    )
