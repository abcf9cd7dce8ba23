"""The whole way from a machine and a record to an answer: search, what-if and verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decoding.record import AcceptanceRecord
from decoding.schedule import Method
from hwprofiles.profile import Profile
from planner.predicted_verdict import Judged, judge, significantly_slower
from planner.search.comparison import comparer
from planner.search.halves import judging_part
from planner.search.search import Candidate, SearchResult, search
from planner.search.space import Placement, SearchSpace
from planner.verdict import SpeculationVerdict
from planner.what_if.sensitivity import Sensitivity, analyse
from sim.evaluator import Evaluator


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All schedules over all prompts, the best of every kind over those to judge on, and what that means."""

    profile: Profile
    record: AcceptanceRecord
    search: SearchResult
    judged: Judged
    sensitivity: Sensitivity
    verdict: SpeculationVerdict

    def __repr__(self) -> str:
        """Return one line: tables and records would fill pages."""
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
    sensitivity = analyse(found, profile, record, significantly_slower(judged.result, compare))
    return Plan(
        profile=profile,
        record=record,
        search=found,
        judged=judged,
        sensitivity=sensitivity,
        verdict=judge(judged, to_judge, compare, sensitivity),
    )


def _leaders(result: SearchResult, profile: Profile, record: AcceptanceRecord) -> SearchResult:
    """Return the first of every method and placement, with what is predicted for it over `record`."""
    leaders: dict[tuple[Method, Placement], Candidate] = {}
    for candidate in result.candidates:
        leaders.setdefault((candidate.schedule.method, candidate.placement), candidate)
    evaluator = Evaluator(profile, record)
    return SearchResult(
        candidates=tuple(replace(one, prediction=evaluator.predict(one.schedule)) for one in leaders.values())
    )
