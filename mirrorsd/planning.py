"""From a profile and a record to the answer: everything a search says, in one call. No torch, no model."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from planner.comparison import comparer
from planner.search import SearchResult, search
from planner.sensitivity import Sensitivity, analyse
from planner.space import SearchSpace
from planner.upper_bounds import OverlapBound, overlap_bound
from planner.verdict import PlanVerdict, judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The ranking, what would change it, and both in words.

    Attributes:
        search: every candidate, the fastest first.
        sensitivity: break-even points and gains.
        bound: what overlap can bring at most, for the best mirror schedule; None if there is none.
        verdict: the answer for a person.
    """

    search: SearchResult
    sensitivity: Sensitivity
    bound: OverlapBound | None
    verdict: PlanVerdict


def plan(profile: Profile, record: AcceptanceRecord, space: SearchSpace | None = None) -> Plan:
    """Search `space` (all of the default one if None) and put the result into words.

    Raises:
        PlanError: nothing in the space can be priced by the profile and the record.
    """
    result = search(space or SearchSpace(), profile, record)
    sensitivity = analyse(result, profile, record)
    mirror = result.best(method="mirror")
    bound = None
    if mirror is not None:
        length = mirror.prediction.mean_acceptance_length
        bound = overlap_bound(mirror.schedule, profile, record, mean_acceptance_length=length)
    verdict = judge(result, profile, comparer(profile, record), sensitivity, bound)
    return Plan(search=result, sensitivity=sensitivity, bound=bound, verdict=verdict)
