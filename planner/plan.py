"""Plans from a measured profile and an acceptance record: search, verdict and sensitivity."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from planner.first_of_each import first_of_each
from planner.paired_ratio import Compare, comparer
from planner.search.search import Candidate, SearchResult, search
from planner.search.space import Placement, SearchSpace, judging_part
from planner.verdict import PAYS, Claim, Pays, SpeculationVerdict, would_decide
from planner.what_if.mixed_record import whose_tokens
from planner.what_if.sensitivity import BreakEven, Sensitivity, Sweep, analyse
from planner.wording import KINDS, PART, Kind, counted, factor, kind_of, on_lanes, percent, schedule_name
from sim.evaluator import Evaluator

_SMALLEST_SHARE: Final = 0.02
"""Shares of a time below this are not named."""
SHORTEST: Final = 16
"""Tokens of the shortest answer that `short_answers` compares; the longest is the record's longest text."""


def judge(
    found: SearchResult,
    result: SearchResult,
    record: AcceptanceRecord,
    compare: Compare,
    sensitivity: Callable[[], Sensitivity],
) -> SpeculationVerdict:
    """Return the verdict on a search.

    Args:
        found: the whole search.
        result: its leaders, best choice first, with predictions over the prompts to judge on.
        record: the prompts to judge on.
        compare: compares two schedules on these prompts.
        sensitivity: called when the explanation is shown.
    """
    plain, drafting = result.best(kind="plain"), result.best_drafting()

    def claim_of(one: Candidate, other: Candidate) -> Claim:
        pair = one.schedule, other.schedule
        return Claim(one=_name(one), other=_name(other), ratio=compare(*pair), schedules=pair)

    claim = None if plain is None or drafting is None else claim_of(drafting, plain)
    pays: Pays = "cannot_tell" if claim is None else PAYS[claim.outcome]
    missing = "only plain decoding can be predicted" if drafting is None else "the search left plain decoding out"
    # The judging half of the prompts may contradict the choosing half; the recommendation follows the verdict.
    winner = {"yes": drafting, "no": plain}.get(pays) or result.winner
    other: Placement = "pooled" if winner.placement == "split" else "split"
    near = [result.best(method=winner.schedule.method, placement=other)]
    near += [result.best(kind=kind) for kind in KINDS if kind != kind_of(winner.schedule)]
    rivals = [one for one in near if one is not None]
    can_be_run = not record.temperature
    use = "use"
    if claim is not None and pays == "cannot_tell":
        use = f"{would_decide(claim.ratio, can_be_run=can_be_run)}; until then use"
    short = list(short_answers(winner, rivals, record.max_new_tokens))
    return SpeculationVerdict(
        pays=pays,
        claim=claim,
        basis=_basis(found, record.num_prompts) if claim else missing,
        recommended=_name(winner),
        schedule=winner.schedule,
        why=tuple(_why(found, drafting, winner)),
        next_step=(f'{use} "{_name(winner)}" {on_lanes(winner.schedule)}',),
        others=tuple(claim_of(winner, rival) for rival in rivals),
        can_be_run=can_be_run,
        facts={"Faster for short answers, reading the prompt included": short},
        slow_facts=partial(_slow_facts, sensitivity, record),
    )


def _slow_facts(sensitivity: Callable[[], Sensitivity], record: AcceptanceRecord) -> dict[str, list[str]]:
    return {
        "Fastest instead": list(break_evens(sensitivity(), record)),
        "Tokens per second if one part were 10 % faster": [
            f"{part} +{percent(gain)}" for part, gain in sensitivity().gains.items()
        ],
    }


def significantly_slower(result: SearchResult, compare: Compare) -> tuple[Kind, ...]:
    """Return the kinds whose best schedule is slower than the winner beyond the interval of their ratio."""
    best = {kind: result.best(kind=kind) for kind in KINDS}
    return tuple(
        kind
        for kind, rival in best.items()
        if rival is not None and compare(result.winner.schedule, rival.schedule).outcome == "faster"
    )


def _name(candidate: Candidate) -> str:
    return schedule_name(candidate.schedule, candidate.placement)


def _basis(found: SearchResult, num_judged: int) -> str:
    if found.halves is not None:
        return f"predicted on {counted(num_judged, 'held-out prompt')}"
    prompts = counted(num_judged, "prompt")
    return f"predicted on the {prompts} that the schedules were chosen on: too few to hold some out"


def _why(found: SearchResult, drafting: Candidate | None, winner: Candidate) -> Iterator[str]:
    """Yield what the winner's time consists of, and that of the best speculation if plain decoding wins."""
    if drafting is not None and not any(one.prediction.num_accepted_tokens for one in found.candidates):
        yield "no drafted token was right on these prompts: on them drafting only costs time"
    beaten = [] if drafting is None or winner.schedule.traits.window != "none" else [drafting]
    for one in (*beaten, winner):
        parts = sorted(one.seconds_per_token.items(), key=lambda part: -part[1])
        shares = [
            f"{percent(time_s / one.tpot_s)} {PART[name]}"
            for name, time_s in parts
            if time_s >= _SMALLEST_SHARE * one.tpot_s
        ]
        yield f'the time of "{_name(one)}" is {", ".join(shares)}'


def short_answers(winner: Candidate, rivals: Sequence[Candidate], longest: int) -> Iterator[str]:
    """Yield the answer lengths, up to `longest` tokens, at which a rival's shorter prefill makes it finish first."""
    for rival in rivals:
        if rival.tpot_s < winner.tpot_s:
            continue
        times_s = {
            length: (rival.prediction.e2e_at(length), winner.prediction.e2e_at(length))
            for length in range(SHORTEST, longest + 1)
        }
        lengths = [
            length
            for length, (rival_s, winner_s) in times_s.items()
            if rival_s is not None and winner_s is not None and rival_s < (1 - _SMALLEST_SHARE) * winner_s
        ]
        if lengths:
            end = ", the longest predicted" * (lengths[-1] == longest)
            yield f'"{_name(rival)}", {lengths[0]:,} to {counted(lengths[-1], "token")}{end}'


def break_evens(sensitivity: Sensitivity, record: AcceptanceRecord) -> Iterator[str]:
    """Yield the values of acceptance and draft speed at which another kind becomes the fastest."""
    for sweep in sensitivity.sweeps:
        for kind, found in sweep.break_evens.items():
            yield f"{KINDS[kind]}, if {_value(sweep, found, record)}"


def _value(sweep: Sweep, found: BreakEven, record: AcceptanceRecord) -> str:
    if sweep.quantity == "acceptance":
        ends = f" ({percent(found.low)} to {percent(found.high)})" if found.low < found.high else ""
        num_drafters = (record.drafter is not None) + len(record.trees) + len(record.chains)
        others = " (other drafters scaled alike)" if num_drafters > 1 else ""
        return f"{percent(found.at)}{ends} of {whose_tokens(record)} are right, not {percent(sweep.now)}{others}"
    is_faster = found.at > 1
    at, *limits = (value if is_faster else 1 / value for value in (found.at, found.low, found.high))
    ends = f" ({factor(min(limits))} to {factor(max(limits))})" if found.low < found.high else ""
    return f"drafting is {factor(at)}{ends} {'faster' if is_faster else 'slower'}"


@dataclass(frozen=True, kw_only=True)
class _SensitivityOnce:
    """A callable that analyses a search on its first call; a class rather than a closure so that it can be pickled."""

    found: SearchResult
    judged: SearchResult
    profile: Profile
    record: AcceptanceRecord

    def __call__(self) -> Sensitivity:
        return self._sensitivity

    @cached_property
    def _sensitivity(self) -> Sensitivity:
        compare = comparer(self.profile, judging_part(self.record))
        return analyse(self.found, self.profile, self.record, significantly_slower(self.judged, compare))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The answer for a profile and a record.

    Attributes:
        search: all schedules, ranked over all prompts.
        judged: the best of every method and placement, predicted over the prompts to judge on.
        find_sensitivity: takes seconds on the first call.
    """

    profile: Profile
    record: AcceptanceRecord
    search: SearchResult
    judged: SearchResult
    find_sensitivity: Callable[[], Sensitivity]
    verdict: SpeculationVerdict

    @property
    def sensitivity(self) -> Sensitivity:
        """What would have to change for another answer."""
        return self.find_sensitivity()

    @property
    def recommended(self) -> Candidate:
        """The schedule that the verdict recommends, predicted over all prompts."""
        return next(one for one in self.search.candidates if one.schedule == self.verdict.schedule)

    def __repr__(self) -> str:
        """Return one line: tables and records would fill pages."""
        return f"<Plan of {len(self.search.candidates)} schedules: {self.verdict.headline}>"

    def _repr_html_(self) -> str:
        """Return the ranking as a table, for notebooks."""
        return self.search._repr_html_()


def make_plan(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> Plan:
    """Search `space` on `profile` and `record`, and judge the result; `PlanError` where nothing can be priced."""
    found = search(space, profile, record)
    to_judge = judging_part(record)
    judged = _leaders(found.by_choice, profile, to_judge)
    compare = comparer(profile, to_judge)
    find_sensitivity = _SensitivityOnce(found=found, judged=judged, profile=profile, record=record)
    return Plan(
        profile=profile,
        record=record,
        search=found,
        judged=judged,
        find_sensitivity=find_sensitivity,
        verdict=judge(found, judged, to_judge, compare, find_sensitivity),
    )


def _leaders(result: SearchResult, profile: Profile, record: AcceptanceRecord) -> SearchResult:
    """Return the first of every method and placement, with its prediction over `record`."""
    leaders = first_of_each(result.candidates, lambda one: (one.schedule.method, one.placement))
    evaluator = Evaluator(profile, record)
    return SearchResult(candidates=tuple(replace(one, prediction=evaluator.predict(one.schedule)) for one in leaders))
