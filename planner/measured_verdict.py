"""The verdict after real runs: measured times decide, paired by prompt; the prediction stands beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Final, NamedTuple

from decoding.schedule import Schedule
from planner.paired_ratio import CommonFit, Pairs, Ratio, paired_ratio, ratio_by_rounds
from planner.verdict import Badge, Claim, Pays, SpeculationVerdict, times, would_decide
from planner.wording import KINDS, counted, factor, kind_of

_ORDER: Final = list(KINDS)


class PromptTime(NamedTuple):
    """One prompt's seconds of decoding, the tokens committed in them, and the same rounds simulated, if these ran."""

    seconds: float
    tokens: int
    simulated_s: float | None = None


class KnownTime(NamedTuple):
    """Simulated seconds of a recorded prompt, in full, and its kind."""

    seconds: float
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """A schedule that was run, by its own name in tables.

    Attributes:
        predicted_s: predicted time per token.
        prompts: measured times, by prompt; those that failed or were left out are not in it.
        recorded: simulated times of all recorded prompts, run or not; empty where rounds are not known.
    """

    name: str
    schedule: Schedule
    predicted_s: float
    prompts: Mapping[str, PromptTime]
    recorded: Mapping[str, KnownTime] = field(default_factory=dict, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return kind_of(self.schedule) == "plain"

    @property
    def done(self) -> dict[str, PromptTime]:
        """Prompts that have a time and tokens."""
        return {name: time for name, time in self.prompts.items() if time.seconds > 0 and time.tokens > 0}


@dataclass(frozen=True)
class Runs:
    """The schedules that can be compared, `finished`: there is a prompt that all of them have run."""

    finished: tuple[MeasuredSchedule, ...]

    @classmethod
    def of(cls, schedules: Sequence[MeasuredSchedule]) -> "Runs":
        """Leave out schedules that ran no prompt, or share none with those that ran more."""
        left = sorted((one for one in schedules if one.done), key=lambda one: len(one.done), reverse=True)
        while left and not set.intersection(*(set(one.done) for one in left)):
            left.pop()
        return cls(tuple(one for one in schedules if one in left))

    def ratio(self, one: MeasuredSchedule, other: MeasuredSchedule, *, recorded: Pairs | None = None) -> Ratio:
        """Return the other's time over one's: over `recorded`, by default all recorded prompts, if rounds are known."""
        if self.costs is None or not self.costs.compares(one.name, other.name):
            return self.as_run(one, other)
        recorded = recorded or known_pairs(one.recorded, other.recorded)
        return ratio_by_rounds(recorded, self.costs.difference(one.name, other.name))

    def predicted(self, one: MeasuredSchedule, other: MeasuredSchedule) -> float:
        """Return the other's predicted time over one's, on the prompts of `ratio`."""
        if self.costs is None or not self.costs.compares(one.name, other.name):
            return other.predicted_s / one.predicted_s
        ours, theirs = known_pairs(one.recorded, other.recorded)[:2]
        return sum(theirs) / sum(ours)

    @cached_property
    def costs(self) -> CommonFit | None:
        """How far off the simulated times of rounds are, by the runs that went through them; None without such runs."""
        known = {
            one.name: {
                name: (time.seconds, time.simulated_s)
                for name, time in one.done.items()
                if time.simulated_s is not None
            }
            for one in self.finished
            if one.recorded
        }
        known = {name: own for name, own in known.items() if own}
        return CommonFit(known) if known else None

    def as_run(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Ratio:
        """Return the other's measured time over one's on shared prompts, each by as many tokens in both."""
        shared = [(ours, other.done[name]) for name, ours in one.done.items() if name in other.done]
        lengths = [max(ours.tokens, theirs.tokens) for ours, theirs in shared]
        ours, theirs = (
            [time.seconds / time.tokens * length for time, length in zip(side, lengths, strict=True)]
            for side in zip(*shared, strict=True)
        )
        return paired_ratio(ours, theirs)

    @property
    def baseline(self) -> MeasuredSchedule | None:
        """The plain one predicted fastest, which speed-ups in tables are over."""
        return next(iter(self.side(plain=True)), None)

    def over_plain(self, schedules: Sequence[MeasuredSchedule]) -> tuple[Ratio | None, ...]:
        """Return each one's measured speed over that of the plain one predicted fastest; None if not comparable."""
        plain = self.baseline
        return tuple(
            None if plain is None or one not in self.finished else self.as_run(one, plain) for one in schedules
        )

    def tells_faster(self, one: MeasuredSchedule, other: MeasuredSchedule) -> bool:
        """Return whether `one` is faster beyond its interval."""
        return self.ratio(one, other).outcome == "faster"

    def beats_plain(self, one: MeasuredSchedule) -> bool:
        """Return whether a schedule drafts and is faster than every plain one, beyond its interval."""
        plains = self.side(plain=True)
        return not one.is_plain and bool(plains) and all(self.tells_faster(one, plain) for plain in plains)

    def claim(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Claim:
        """Return the ratio of two schedules with their names."""
        return Claim(one=one.name, other=other.name, ratio=self.ratio(one, other))

    def fastest_of(self, some: Sequence[MeasuredSchedule]) -> MeasuredSchedule | None:
        """Return the one faster than each other one, by however little.

        Each two are compared on their own prompts, so that a ratio with a third one could say otherwise.
        """
        return _least_behind(some, self.ratio)

    @property
    def fastest(self) -> MeasuredSchedule | None:
        """The one measured fastest of all, as tables show it: each two on the prompts that both ran."""
        return _least_behind(self.finished, self.as_run)

    def side(self, *, plain: bool) -> list[MeasuredSchedule]:
        """Return the plain ones, or those that draft; the one predicted fastest comes first."""
        return sorted((one for one in self.finished if one.is_plain == plain), key=lambda one: one.predicted_s)


def _least_behind(
    some: Sequence[MeasuredSchedule], ratio: Callable[[MeasuredSchedule, MeasuredSchedule], Ratio]
) -> MeasuredSchedule | None:
    def behind(one: MeasuredSchedule) -> float:
        return max((ratio(other, one).value for other in some if other is not one), default=1.0)

    return min(some, key=behind, default=None)


def known_pairs(one: Mapping[str, KnownTime], other: Mapping[str, KnownTime]) -> Pairs:
    """Return the simulated times of two schedules on all prompts that are recorded for both."""
    names = [name for name in one if name in other]
    ours, theirs = ([side[name].seconds for name in names] for side in (one, other))
    return Pairs(ours, theirs, [one[name].kind for name in names])


def judge_measured(
    schedules: Sequence[MeasuredSchedule], *, at_anchors: Sequence[MeasuredSchedule] = ()
) -> SpeculationVerdict:
    """Judge runs of several schedules, any two on the prompts that both ran.

    The answer is *yes* if the drafting schedule predicted fastest was faster than every plain one, *no* if a plain one
    was faster than every drafting one, each beyond its interval. The two are chosen by prediction, so the luck of the
    runs did not select them; a *no* names the plain schedule that was faster. Runs take turns, so their times decide
    uncorrected; if times corrected by anchors turn yes into no, or back, the answer is "cannot tell". Intervals are
    about prompts like those that were recorded.

    Args:
        schedules: what was run; whatever shares no prompt with the others is named and not judged.
        at_anchors: the same runs with times corrected by the anchors around them.
    """
    runs = Runs.of(schedules)
    as_run, plain, drafting = _pays(runs)
    corrected = _pays(Runs.of(at_anchors))[0] if at_anchors else as_run
    winner = _winner(runs, drafting if as_run == "yes" else None)
    claim: Claim | None = None
    why: tuple[str, ...] = ()
    basis = f"no {'plain' if plain is None else 'drafting'} schedule finished the runs"
    if plain is not None and drafting is not None:
        claim, why = runs.claim(drafting, plain), tuple(_why(runs, as_run, corrected, plain, drafting))
        num_run, num_known = runs.as_run(drafting, plain).num_pairs, claim.ratio.num_pairs
        known = counted(num_known, "prompt")
        prompts = known if num_run == num_known else f"{num_run} of {num_known} recorded prompts"
        basis = f'measured on {prompts} ("{claim.one}" against "{claim.other}")'
    missing = [f'"{one.name}"' for one in schedules if one not in runs.finished]
    holders: dict[Badge, MeasuredSchedule | None] = {
        "recommended": winner,
        "predicted fastest on all prompts": min(schedules, key=lambda one: one.predicted_s, default=None),
        "measured fastest": runs.fastest,
    }
    return SpeculationVerdict(
        pays="cannot_tell" if {as_run, corrected} == {"yes", "no"} else as_run,
        claim=claim,
        basis=basis,
        world="measured",
        recommended=None if winner is None else winner.name,
        schedule=None if winner is None else winner.schedule,
        why=why,
        next_step=(_next_step(runs, claim, winner),),
        others=tuple(runs.claim(winner, one) for one in runs.finished if one is not winner) if winner else (),
        facts={"Not judged, since no prompt is shared with the others": missing},
        warnings=tuple(_warnings(runs, winner, drafting)),
        badges={one.name: tuple(badge for badge, holder in holders.items() if holder is one) for one in schedules},
    )


def _pays(runs: Runs) -> tuple[Pays, MeasuredSchedule | None, MeasuredSchedule | None]:
    """Return the answer, and the plain and the drafting schedule that it is about.

    Of several plain ones that is the one that the drafting one beats least surely; in a *yes*, which all agree on, of
    those that ran most of its prompts; in a *no*, one that beats all.
    """
    plains, draftings = runs.side(plain=True), runs.side(plain=False)
    if not plains or not draftings:
        return "cannot_tell", next(iter(plains), None), next(iter(draftings), None)
    ratios = {plain.name: runs.ratio(draftings[0], plain) for plain in plains}
    hardest = min(plains, key=lambda plain: ratios[plain.name].low)
    if runs.beats_plain(draftings[0]):
        pairs = {plain.name: runs.as_run(draftings[0], plain).num_pairs for plain in plains}
        known_best = [plain for plain in plains if pairs[plain.name] == max(pairs.values())]
        return "yes", min(known_best, key=lambda plain: ratios[plain.name].low), draftings[0]
    for plain in plains:
        if all(runs.tells_faster(plain, one) for one in draftings):
            return "no", plain, draftings[0]
    return "cannot_tell", hardest, draftings[0]


def _winner(runs: Runs, headline: MeasuredSchedule | None) -> MeasuredSchedule | None:
    """Return the simplest schedule that none is faster than beyond its interval; of a kind, the one measured fastest.

    Where some of them are faster than plain decoding beyond their intervals, only these count. The drafting schedule
    that a *yes* is about, `headline`, is preferred where it is one of them: it yields only to that one and to simpler
    kinds that tables show to be faster.
    """
    contenders = [one for one in runs.finished if not any(runs.tells_faster(other, one) for other in runs.finished)]
    contenders = [one for one in contenders if runs.beats_plain(one)] or contenders
    simplest = min(map(_complexity, contenders), default=None)
    winner = runs.fastest_of([one for one in contenders if _complexity(one) == simplest])
    if headline is None or headline not in contenders:
        return winner
    simpler = [one for one in contenders if one is winner or _complexity(one) < _complexity(headline)]
    ahead = [headline, *(one for one in simpler if one is not headline and runs.as_run(headline, one).value <= 1)]
    simplest = min(map(_complexity, ahead))
    return runs.fastest_of([one for one in ahead if _complexity(one) == simplest])


def _complexity(one: MeasuredSchedule) -> int:
    return _ORDER.index(kind_of(one.schedule))


def _why(
    runs: Runs, as_run: Pays, corrected: Pays, plain: MeasuredSchedule, drafting: MeasuredSchedule
) -> Iterator[str]:
    """Yield the prediction beside the measured ratio, and the reasons why that ratio alone is not the answer."""
    ratio, predicted = runs.ratio(drafting, plain), runs.predicted(drafting, plain)
    same = ratio.on_these if ratio.machine_error else ratio  # as the prediction, of no other prompts
    place = "within" if same.low <= predicted <= same.high else "outside"
    whose = " on these very prompts" if ratio.machine_error else ""
    yield f"predicted {factor(predicted)}" + (f", {place} the measured interval{whose}" if isfinite(same.high) else "")
    if ratio.machine_error:
        run = runs.as_run(drafting, plain)
        longest = max(time.tokens for name, time in drafting.done.items() if name in plain.done)
        answers = f"{run.num_pairs} that were run, for answers of up to {counted(longest, 'token')}"
        yield f"{times(ratio.on_these)} on these very prompts; {factor(run.value)} on the {answers}"
    if corrected != as_run:
        yield f'with times corrected by the anchors the answer would be "{corrected.replace("_", " ")}"'
    equals = [one for one in runs.side(plain=False) if not runs.tells_faster(plain, one)]
    if as_run == "cannot_tell" and ratio.outcome == "slower" and equals:
        open_claim = runs.claim(runs.fastest_of(equals) or drafting, plain)
        yield f'"{open_claim.one}" has {times(open_claim.ratio)} the speed of "{open_claim.other}"'


def _next_step(runs: Runs, claim: Claim | None, winner: MeasuredSchedule | None) -> str:
    if winner is None:
        return "run it again: no schedule finished"
    use = "use"
    if claim is not None and claim.outcome == "cannot tell":
        use = f"{would_decide(claim.ratio)}; until then use"
    merit = "the simplest kind that was not measured slower"
    if winner is runs.fastest:
        merit = "measured fastest"
    elif claim is not None and winner.name == claim.one and claim.outcome == "faster":
        merit = "faster than plain decoding, and none is certainly faster than it"
    elif runs.beats_plain(winner):
        merit = "the simplest kind that is faster than plain decoding"
    other = next((one for one in runs.finished if claim and one.name == claim.one), winner)
    if winner is not other and not winner.is_plain:  # the answer's number is not of what is recommended
        merit += f', {times(runs.ratio(winner, other))} the speed of "{other.name}"'
    return f'{use} "{winner.name}": {merit}'


def _warnings(runs: Runs, winner: MeasuredSchedule | None, drafting: MeasuredSchedule | None) -> Iterator[str]:
    if winner and drafting and runs.beats_plain(winner) and not runs.beats_plain(drafting):
        yield (
            f'"{winner.name}" was measured faster than plain decoding, but these very runs picked it: it may be '
            "luck. Run other prompts to check."
        )
