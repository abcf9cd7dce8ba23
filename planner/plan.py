"""The whole way from a machine and a record to an answer: search, what-if, bound and verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decoding.record import AcceptanceRecord
from decoding.schedule import Method
from hwprofiles.profile import Profile
from planner.changes_in_words import changes
from planner.search.comparison import comparer
from planner.search.halves import judging_part
from planner.search.search import Candidate, SearchResult, search
from planner.search.space import Placement, SearchSpace
from planner.upper_bounds import OverlapBound, overlap_bound
from planner.verdict import Judged, PlanVerdict, judge, told_slower
from planner.what_if.sensitivity import Sensitivity, analyse
from sim.evaluator import Evaluator


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was found, and what it means.

    Attributes:
        profile, record: what it was made from.
        search: all schedules, ranked over all prompts.
        judged: the best of every method and placement, over the prompts to judge on.
        sensitivity: what would have to change.
        bound: the limit of the best mirror schedule; None if there is none.
        verdict: the answer in words.
    """

    profile: Profile
    record: AcceptanceRecord
    search: SearchResult
    judged: Judged
    sensitivity: Sensitivity
    bound: OverlapBound | None
    verdict: PlanVerdict

    def __repr__(self) -> str:
        """In a line: tables and records would fill pages."""
        return f"<Plan of {len(self.search.candidates)} schedules: {self.verdict.headline}>"

    def _repr_html_(self) -> str:
        """Return the ranking as a table, for notebooks."""
        return self.search._repr_html_()


def make_plan(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> Plan:
    """Search `space` on `profile` and `record`, and judge what comes out.

    Raises:
        PlanError: nothing in the space can be priced by the profile and the record.
    """
    found = search(space, profile, record)
    to_judge = judging_part(record)
    judged = Judged(
        result=_leaders(found.by_choice, profile, to_judge),
        num_prompts=len(to_judge.prompts),
        is_held_out=found.halves is not None,
        is_ever_right=any(one.prediction.num_accepted_tokens for one in found.candidates),
    )
    compare = comparer(profile, to_judge)
    sensitivity = analyse(found, profile, record, told_slower(judged.result, compare))
    bound = _bound(judged.result, profile, to_judge)
    return Plan(
        profile=profile,
        record=record,
        search=found,
        judged=judged,
        sensitivity=sensitivity,
        bound=bound,
        verdict=judge(judged, profile, compare, changes(sensitivity, record, bound)),
    )


def _leaders(result: SearchResult, profile: Profile, record: AcceptanceRecord) -> SearchResult:
    """The first of every method and placement, with what is predicted for it over `record`."""
    leaders: dict[tuple[Method, Placement], Candidate] = {}
    for candidate in result.candidates:
        leaders.setdefault((candidate.schedule.method, candidate.placement), candidate)
    evaluator = Evaluator(profile, record)
    return SearchResult(
        candidates=tuple(replace(one, prediction=evaluator.predict(one.schedule)) for one in leaders.values())
    )


def _bound(result: SearchResult, profile: Profile, record: AcceptanceRecord) -> OverlapBound | None:
    mirror = result.best(method="mirror")
    if mirror is None:
        return None
    length = mirror.prediction.mean_acceptance_length
    return overlap_bound(mirror.schedule, profile, record, mean_acceptance_length=length)
