"""Predicts every schedule of a space and ranks them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from decoding.schedule import Method, RootSource, Schedule
from hwprofiles.profile import Profile
from planner.first_of_each import first_of_each
from planner.html_table import html_table
from planner.search.space import Halves, Placement, SearchSpace, halves, placement_name, survey
from planner.wording import Kind, kind_of, schedule_names
from sim.evaluator import Evaluator
from sim.prediction import Prediction

LEADING_METHODS = 3
"""A demo runs the best schedule of each tree method among this many fastest methods."""
_FEWEST_RUN: Final = 8
TARGET_PARTS: Final = ("target_verify", "target_prefix", "target_suffix")
"""Parts of a predicted time in which the target works."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its prediction."""

    schedule: Schedule
    placement: Placement
    prediction: Prediction

    @property
    def tpot_s(self) -> float:
        """Predicted time per committed token."""
        return self.prediction.tpot_s

    @property
    def seconds_per_token(self) -> dict[str, float]:
        """Predicted seconds per token by part (see `PART`), none negative.

        Where lanes speed each other up, "contention" is negative: that gain is subtracted from the target's parts.
        """
        parts = self.prediction.bottlenecks._asdict()
        scale = self.tpot_s / sum(parts.values())
        target_s = sum(parts[name] for name in TARGET_PARTS)
        shrunk = 1 + min(0.0, parts["contention"]) / target_s if target_s else 1.0
        parts |= {name: parts[name] * shrunk for name in TARGET_PARTS}
        parts["contention"] = max(0.0, parts["contention"])
        return {name: time_s * scale for name, time_s in parts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """All candidates of a search, at least one, the fastest over all prompts first.

    Attributes:
        halves: the prompts to choose the winner on, and those to judge it on; None where all prompts serve both.
        left_out: how many schedules could not be predicted, by what is missing from profile or record.
    """

    candidates: tuple[Candidate, ...]
    halves: Halves | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line: the candidates would fill pages."""
        best, count = self.candidates[0], len(self.candidates)
        return f"<SearchResult of {count} schedules: {best.schedule.method} first, {_ms(best)} ms per token>"

    def _repr_html_(self) -> str:
        """Return the ten fastest schedules as a table, for notebooks."""
        names = self.names
        rows = [(names[one.schedule], _ms(one)) for one in self.candidates[:10]]
        return html_table(f"Fastest of {len(self.candidates)} schedules, predicted", ("schedule", "ms per token"), rows)

    @property
    def names(self) -> dict[Schedule, str]:
        """A name for each candidate, different from all others."""
        names = schedule_names([(one.schedule, one.placement) for one in self.candidates])
        return {one.schedule: name for one, name in zip(self.candidates, names, strict=True)}

    @property
    def winner(self) -> Candidate:
        """The fastest candidate on the prompts to choose on."""
        return self.by_choice.candidates[0]

    @property
    def by_choice(self) -> "SearchResult":
        """The same candidates, the fastest on the prompts to choose on first."""
        if self.halves is None:
            return self
        places = self.halves.choosing

        def seconds(one: Candidate) -> float:
            return sum(one.prediction.prompt_decode_s[place] for place in places)

        return replace(self, candidates=tuple(sorted(self.candidates, key=seconds)), halves=None)

    def best(
        self,
        *,
        kind: Kind | None = None,
        method: Method | None = None,
        placement: Placement | None = None,
        root_source: RootSource | None = None,
    ) -> Candidate | None:
        """Return the first candidate that has every given property; None if there is none."""
        wanted = kind, method, placement, root_source
        for one in self.candidates:
            found = kind_of(one.schedule), one.schedule.method, one.placement, one.schedule.root_source
            if all(asked is None or asked == its for asked, its in zip(wanted, found, strict=True)):
                return one
        return None

    def best_drafting(self) -> Candidate | None:
        """Return the first candidate that drafts; None if none does."""
        return next((one for one in self.candidates if one.schedule.traits.window != "none"), None)


def search(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> SearchResult:
    """Predict every schedule of `space` and rank by time per token; ties keep the order of enumeration.

    Uneven numbers of roots are fitted to the half of the prompts on which the winner is chosen too.

    Raises:
        PlanError: no schedule can be predicted; the message says what profile and record contain.
    """
    evaluator = Evaluator(profile, record) if record.prompts else None
    found = survey(space, profile, record, evaluator)
    if evaluator is None or not found.schedules:
        reasons = "; ".join(f"{count} times: {reason}" for reason, count in found.left_out.items())
        msg = (
            f"no schedule of the search space can be priced: the profile has lanes "
            f"{', '.join(lane.name for lane in profile.lanes)} (drafter {profile.drafter}), the record has "
            f"{record.num_prompts} prompts, windows up to {record.max_window}, exits {list(record.exit_layers)} and "
            f"{len(record.trees)} kinds of trees; "
            f"widen the space, or calibrate and record a wider grid ({reasons or 'the space itself is empty'})"
        )
        raise PlanError(msg)
    return replace(_ranked(found.schedules, profile, evaluator), halves=halves(record), left_out=found.left_out)


def rank(schedules: Sequence[Schedule], profile: Profile, record: AcceptanceRecord) -> SearchResult:
    """Predict the given schedules (at least one) and rank them over all prompts."""
    return _ranked(schedules, profile, Evaluator(profile, record))


def _ranked(schedules: Sequence[Schedule], profile: Profile, evaluator: Evaluator) -> SearchResult:
    candidates = (Candidate(one, placement_name(one, profile), evaluator.predict(one)) for one in schedules)
    return SearchResult(candidates=tuple(sorted(candidates, key=lambda candidate: candidate.tpot_s)))


def pick_demo_schedules(result: SearchResult) -> list[Candidate]:
    """Return the schedules that a demo runs: the winner, the best of every kind and placement, and two slow ones.

    They are: plain and synchronous decoding, each split and pooled; mirror for each root source; the best tree, and the
    best of every tree method among the `LEADING_METHODS` fastest methods; the slowest synchronous and the slowest
    mirror schedule, since a simulator must be right there too. If kinds are missing, further schedules from all over
    the ranking are added up to `_FEWEST_RUN`.
    """
    placements: tuple[Placement, ...] = ("split", "pooled")
    root_sources: tuple[RootSource, ...] = ("exit", "draft", "hybrid")
    wanted = [result.best(kind="plain", placement=placement) for placement in placements]
    wanted += [result.best(kind="lookup")]
    wanted += [result.best(kind="synchronous", placement=placement) for placement in placements]
    wanted += [result.best(kind="mirror", root_source=source) for source in root_sources]
    leading = first_of_each(result.candidates, lambda one: one.schedule.method)[:LEADING_METHODS]
    wanted += [result.best(kind="tree"), *(one for one in leading if one.schedule.is_tree)]
    wanted += [
        next((one for one in reversed(result.candidates) if kind_of(one.schedule) == kind), None)
        for kind in ("synchronous", "mirror")
    ]
    wanted += [result.winner, result.by_choice.best(kind="plain"), result.by_choice.best_drafting()]
    picked = {candidate.schedule: candidate for candidate in wanted if candidate is not None}
    for candidate in _spread(result.candidates):
        if len(picked) >= _FEWEST_RUN:
            break
        picked.setdefault(candidate.schedule, candidate)
    return list(picked.values())


def _spread(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates, ordered to spread over the ranking: first its ends, then its middle, its quarters, ..."""
    order: dict[int, None] = {}
    num_parts = 1
    while len(order) < len(candidates):
        order |= dict.fromkeys(part * (len(candidates) - 1) // num_parts for part in range(num_parts + 1))
        num_parts *= 2
    return [candidates[index] for index in order]


def _ms(one: Candidate) -> str:
    return f"{1e3 * one.tpot_s:.1f}"
