"""The verdict after real runs: measured times, paired by prompt, decide; the prediction is only shown with them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, isinf
from typing import Final, NamedTuple

from decoding.schedule import Schedule
from planner.paired_ratio import CommonFit, Pairs, Ratio, paired_ratio, ratio_by_rounds
from planner.verdict import Badge, Claim, Pays, SpeculationVerdict, times, would_decide
from planner.wording import KINDS, counted, factor, kind_of

_ORDER: Final = list(KINDS)


class PromptTime(NamedTuple):
    """Measured seconds of decoding a prompt, the committed tokens, and the simulated seconds of the same rounds.

    `simulated_s` is None if the run did not have the simulated rounds.
    """

    seconds: float
    tokens: int
    simulated_s: float | None = None


class KnownTime(NamedTuple):
    """Simulated seconds of a recorded prompt's whole text, and the kind of prompt."""

    seconds: float
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """A schedule that was run, with its unique name in tables.

    Attributes:
        predicted_s: predicted time per token.
        prompts: measured times by prompt, without runs that failed or were left out.
        recorded: simulated times of all recorded prompts, run or not; empty if their rounds are not known.
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
        """The prompts with a measured time and at least one token."""
        return {name: time for name, time in self.prompts.items() if time.seconds > 0 and time.tokens > 0}


@dataclass(frozen=True)
class Runs:
    """Schedules that can be compared (`finished`): at least one prompt was run by all of them."""

    finished: tuple[MeasuredSchedule, ...]

    @classmethod
    def of(cls, schedules: Sequence[MeasuredSchedule]) -> "Runs":
        """Return the comparable schedules: those with the fewest prompts are dropped until all share a prompt."""
        left = sorted((one for one in schedules if one.done), key=lambda one: len(one.done), reverse=True)
        while left and not set.intersection(*(set(one.done) for one in left)):
            left.pop()
        return cls(tuple(one for one in schedules if one in left))

    def ratio(self, one: MeasuredSchedule, other: MeasuredSchedule, *, recorded: Pairs | None = None) -> Ratio:
        """Return the time of `other` over that of `one`.

        If rounds are known, it is for the `recorded` prompts (by default all that both have); else for the prompts run.
        """
        if self.costs is None or not self.by_rounds(one, other):
            return self.as_run(one, other)
        recorded = recorded or known_pairs(one.recorded, other.recorded)
        return ratio_by_rounds(recorded, self.costs.difference(one.name, other.name))

    def by_rounds(self, one: MeasuredSchedule, other: MeasuredSchedule) -> bool:
        """Return whether the rounds of both are known and runs connect them: `ratio` is for recorded prompts."""
        return self.costs is not None and self.costs.compares(one.name, other.name)

    def predicted(self, one: MeasuredSchedule, other: MeasuredSchedule) -> float:
        """Return the predicted time of `other` over that of `one`, on the same prompts as `ratio`."""
        if not self.by_rounds(one, other):
            return other.predicted_s / one.predicted_s
        ours, theirs = known_pairs(one.recorded, other.recorded)[:2]
        return sum(theirs) / sum(ours)

    @cached_property
    def costs(self) -> CommonFit | None:
        """How far off the simulated times are, by runs that had the simulated rounds; None without such runs."""
        known = {
            one.name: {
                name: (time.seconds, time.simulated_s)
                for name, time in one.done.items()
                if time.simulated_s is not None
            }
            for one in self.finished
            if one.recorded
        }
        known = {name: times_s for name, times_s in known.items() if times_s}
        return CommonFit(known) if known else None

    def as_run(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Ratio:
        """Return the measured time of `other` over that of `one` on shared prompts, scaled to equally many tokens."""
        shared = [(ours, other.done[name]) for name, ours in one.done.items() if name in other.done]
        lengths = [max(ours.tokens, theirs.tokens) for ours, theirs in shared]
        ours, theirs = (
            [time.seconds / time.tokens * length for time, length in zip(side, lengths, strict=True)]
            for side in zip(*shared, strict=True)
        )
        return paired_ratio(ours, theirs)

    @property
    def baseline(self) -> MeasuredSchedule | None:
        """The plain schedule predicted fastest; speed-ups in tables are relative to it."""
        return next(iter(self.side(plain=True)), None)

    def over_plain(self, schedules: Sequence[MeasuredSchedule]) -> tuple[Ratio | None, ...]:
        """Return the measured speed of each schedule over that of `baseline`; None if they cannot be compared."""
        plain = self.baseline
        return tuple(
            None if plain is None or one not in self.finished else self.as_run(one, plain) for one in schedules
        )

    def tells_faster(self, one: MeasuredSchedule, other: MeasuredSchedule) -> bool:
        """Return whether `one` is faster than `other` beyond the interval of their ratio."""
        return self.ratio(one, other).outcome == "faster"

    def beats_plain(self, one: MeasuredSchedule) -> bool:
        """Return whether a schedule drafts and is faster than every plain one, beyond the intervals of the ratios."""
        plains = self.side(plain=True)
        return not one.is_plain and bool(plains) and all(self.tells_faster(one, plain) for plain in plains)

    def claim(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Claim:
        """Return the ratio of two schedules with their names."""
        return Claim(one=one.name, other=other.name, ratio=self.ratio(one, other))

    def fastest_of(self, some: Sequence[MeasuredSchedule]) -> MeasuredSchedule | None:
        """Return the schedule that is faster than all others, by however little.

        Each pair is compared on its own prompts, so there may be none; then return the one that is least behind.
        """
        return _least_behind(some, self.ratio)

    @property
    def fastest(self) -> MeasuredSchedule | None:
        """The schedule measured fastest, as in tables: each pair is compared on the prompts that both ran."""
        return _least_behind(self.finished, self.as_run)

    def side(self, *, plain: bool) -> list[MeasuredSchedule]:
        """Return the plain schedules, or those that draft; the one predicted fastest comes first."""
        return sorted((one for one in self.finished if one.is_plain == plain), key=lambda one: one.predicted_s)


def _least_behind(
    some: Sequence[MeasuredSchedule], ratio: Callable[[MeasuredSchedule, MeasuredSchedule], Ratio]
) -> MeasuredSchedule | None:
    def behind(one: MeasuredSchedule) -> float:
        return max((ratio(other, one).value for other in some if other is not one), default=1.0)

    return min(some, key=behind, default=None)


def known_pairs(one: Mapping[str, KnownTime], other: Mapping[str, KnownTime]) -> Pairs:
    """Return the simulated times of two schedules on all prompts that both have."""
    names = [name for name in one if name in other]
    ours, theirs = ([side[name].seconds for name in names] for side in (one, other))
    return Pairs(ours, theirs, [one[name].kind for name in names])


def judge_measured(
    schedules: Sequence[MeasuredSchedule], *, at_anchors: Sequence[MeasuredSchedule] = ()
) -> SpeculationVerdict:
    """Judge runs of several schedules; each pair is compared on the prompts that both ran.

    The answer is *yes* if the drafting schedule predicted fastest was faster than every plain one, *no* if a plain one
    was faster than every drafting one, each beyond the interval. Candidates are chosen by prediction so that lucky runs
    do not select them; a *no* names the plain schedule that was faster. Since runs take turns, uncorrected times
    decide; if times corrected by anchors turn a yes into a no, or the reverse, the answer is "cannot tell". Intervals
    are for prompts like those that were recorded.

    Args:
        schedules: what was run; schedules that share no prompt with the others are named but not judged.
        at_anchors: the same runs with times corrected by their anchors.
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
        "measured fastest on the same prompts": runs.fastest,
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
        facts={"Not judged, since they share no prompt with the others": missing},
        warnings=tuple(_warnings(runs, winner, drafting)),
        badges={one.name: tuple(badge for badge, holder in holders.items() if holder is one) for one in schedules},
    )


def _pays(runs: Runs) -> tuple[Pays, MeasuredSchedule | None, MeasuredSchedule | None]:
    """Return the answer, and the plain and the drafting schedule that it compares.

    Of several plain schedules it is the one that the drafting schedule beats by the smallest lower end; for a *yes*,
    where it beats all, only among those that share the most prompts with it. For a *no*, it is one that beats all
    drafting schedules.
    """
    plains, draftings = runs.side(plain=True), runs.side(plain=False)
    if not plains or not draftings:
        return "cannot_tell", next(iter(plains), None), next(iter(draftings), None)
    ratios = {plain.name: runs.ratio(draftings[0], plain) for plain in plains}
    hardest = min(plains, key=lambda plain: ratios[plain.name].low)
    if runs.beats_plain(draftings[0]):
        num_shared = {plain.name: runs.as_run(draftings[0], plain).num_pairs for plain in plains}
        best_known = [plain for plain in plains if num_shared[plain.name] == max(num_shared.values())]
        return "yes", min(best_known, key=lambda plain: ratios[plain.name].low), draftings[0]
    for plain in plains:
        if all(runs.tells_faster(plain, one) for one in draftings):
            return "no", plain, draftings[0]
    return "cannot_tell", hardest, draftings[0]


def _winner(runs: Runs, headline: MeasuredSchedule | None) -> MeasuredSchedule | None:
    """Return the schedule to recommend.

    Contenders are the schedules that no other is surely faster than (beyond the interval); if some of them are surely
    faster than plain decoding, only these. The winner is of the simplest kind among contenders, and the fastest of it.
    But if the drafting schedule of a *yes* (`headline`) is a contender, it is preferred: only that winner, or one of a
    simpler kind, replaces it, and only if it was measured faster in tables too.
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
    """Yield the predicted ratio next to the measured one, and why the measured ratio alone is not the answer."""
    ratio, predicted = runs.ratio(drafting, plain), runs.predicted(drafting, plain)
    same = ratio.on_these if ratio.machine_error else ratio  # the prediction is for these prompts only
    place = "within" if same.low <= predicted <= same.high else "outside"
    whose = " on these very prompts" if ratio.machine_error else ""
    yield f"predicted {factor(predicted)}" + (f", {place} the measured interval{whose}" if isfinite(same.high) else "")
    if ratio.machine_error:
        run = runs.as_run(drafting, plain)
        longest = max(time.tokens for name, time in drafting.done.items() if name in plain.done)
        ran = "the prompt that was run" if run.num_pairs == 1 else f"the {run.num_pairs} prompts that were run"
        answers = f"{ran}, for answers of up to {counted(longest, 'token')}"
        yield f"{times(ratio.on_these)} on these very prompts; {factor(run.value)} on {answers}"
        if isinf(ratio.machine_error):
            yield "runs of one prompt show no noise, so there is no interval: a second one was missing"
    if corrected != as_run:
        yield f'with times corrected by the anchors the answer would be "{corrected.replace("_", " ")}"'
    equals = [one for one in runs.side(plain=False) if not runs.tells_faster(plain, one)]
    if as_run == "cannot_tell" and ratio.outcome == "slower" and equals:
        open_claim = runs.claim(runs.fastest_of(equals) or drafting, plain)
        yield f'"{open_claim.one}" has {times(open_claim.ratio)} the speed of "{open_claim.other}"'


def _next_step(runs: Runs, claim: Claim | None, winner: MeasuredSchedule | None) -> str:
    if winner is None:
        return "repeat the runs, since no schedule finished"
    use = "use"
    if claim is not None and claim.outcome == "cannot tell":
        use = f"{would_decide(claim.ratio)}; until then use"
    merit = "the simplest kind that was not measured slower"
    if winner is runs.fastest:
        merit = "measured fastest on the same prompts"
    elif claim is not None and winner.name == claim.one and claim.outcome == "faster":
        merit = "faster than plain decoding, and no other schedule is surely faster than it"
    elif runs.beats_plain(winner):
        merit = "the simplest kind that is faster than plain decoding"
    other = next((one for one in runs.finished if claim and one.name == claim.one), winner)
    if winner is not other and not winner.is_plain:  # the headline's ratio is of another schedule
        merit += f', {times(runs.ratio(winner, other))} the speed of "{other.name}"'
    return f'{use} "{winner.name}": {merit}'


def _warnings(runs: Runs, winner: MeasuredSchedule | None, drafting: MeasuredSchedule | None) -> Iterator[str]:
    if winner and drafting and runs.beats_plain(winner) and not runs.beats_plain(drafting):
        yield (
            f'"{winner.name}" was measured faster than plain decoding, but it was chosen because of these very runs, '
            "so this may be luck. Run other prompts to check."
        )
