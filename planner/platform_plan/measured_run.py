"""Compares a plan's predictions with measured runs, and with a simulation by events."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field

from decoding.errors import ConfigError, PlanError
from decoding.files import parse_json, read_text
from decoding.schedule import Schedule
from decoding.validation import told
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import between, milliseconds, on_lanes, percent, schedule_name
from sim.evaluator import Evaluator
from sim.prediction import Prediction
from sim.world import simulate


class MeasuredRun(BaseModel):
    """A schedule that was run; lanes, target and dtype have the names that `mirrorsd run` gives them.

    Attributes:
        mean_acceptance_length: committed tokens per round.
        label: what was not real about the run.
        temperature: the sampling temperature; 0 is greedy.
        warnings: the warnings of the result file.
    """

    schedule: Schedule
    target: str
    dtype: str
    tpot_s: Annotated[float, Field(gt=0, lt=1e7, allow_inf_nan=False)]
    mean_acceptance_length: Annotated[float, Field(ge=1, lt=1e3, allow_inf_nan=False)]
    label: str = ""
    temperature: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def caveat(self) -> str:
        """What is appended to the schedule's name if something about the run was not real."""
        return f", with {self.label}" * bool(self.label)


@dataclass(frozen=True, kw_only=True, slots=True)
class BesideMeasured:
    """A measured run and its prediction; `name` and `place` are those of the plan's table.

    `schedule` is the schedule that was run, with the plan's names of lanes.
    """

    name: str
    place: str
    run: MeasuredRun
    schedule: Schedule
    prediction: Prediction

    @property
    def is_inside(self) -> bool:
        """Whether the time per token lies in the predicted interval."""
        return self.prediction.tpot_s_low <= self.run.tpot_s <= self.prediction.tpot_s_high

    @property
    def error(self) -> float:
        """Predicted over measured time per token, minus one."""
        return self.prediction.tpot_s / self.run.tpot_s - 1

    @property
    def round_s(self) -> tuple[float, float]:
        """Seconds of a round, predicted and measured."""
        return (
            self.prediction.tpot_s * self.prediction.mean_acceptance_length,
            self.run.tpot_s * self.run.mean_acceptance_length,
        )

    @property
    def in_words(self) -> str:
        """Both times per token, and the time and tokens of their rounds."""
        one, times = self.prediction, [milliseconds(time_s) for time_s in self.round_s]
        more = self.run.tpot_s / one.tpot_s - 1
        return (
            f'"{self.name}", {self.place}, took {milliseconds(self.run.tpot_s)} per token, {percent(abs(more))} '
            f"{'more' if more > 0 else 'less'} than the {milliseconds(one.tpot_s)} predicted "
            f"({between(one.tpot_s_low, one.tpot_s_high)}); a round took {times[1]} ({times[0]} predicted) and yielded "
            f"{self.run.mean_acceptance_length:.2f} tokens ({one.mean_acceptance_length:.2f} predicted)"
        )


class LeftOutRun(NamedTuple):
    """A measured run that the plan cannot predict, and why."""

    run: MeasuredRun
    reason: str

    @property
    def name(self) -> str:
        """The name of its schedule, with the lanes that it ran on."""
        return schedule_name(self.run.schedule, on_lanes(self.run.schedule))


_MOST_WARNINGS: Final = 3
"""Further warnings of a file are only counted: there may be one for each prompt."""


class ComparedRuns(NamedTuple):
    """The runs of a file: those compared with their predictions, and those that the plan cannot predict."""

    compared: Sequence[BesideMeasured]
    left_out: Sequence[LeftOutRun]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The file's warnings, each once."""
        runs = [*(one.run for one in self.compared), *(one.run for one in self.left_out)]
        return tuple(dict.fromkeys(warning for run in runs for warning in run.warnings))

    @property
    def in_words(self) -> str:
        """How many times lie in their intervals and which is farthest off; what is not compared, and why; warnings."""
        found = self.compared
        worst, num_inside = max(found, key=lambda one: abs(one.error)), sum(one.is_inside for one in found)
        if len(found) > 1:
            said = f"{num_inside} of {len(found)} measured times lie in the predicted interval; farthest off: "
        else:
            said = f"Measured {'inside' if num_inside else 'outside'} the predicted interval: "
        names: dict[str, list[str]] = {}
        for one in self.left_out:
            names.setdefault(one.reason, []).append(f'"{one.name}"')
        others = "; ".join(f"{', '.join(of_it)} ({reason})" for reason, of_it in names.items())
        total = len(found) + len(self.left_out)
        parts = [f"{said}{worst.in_words}.", f"Not compared: {len(self.left_out)} of {total}: {others}." * bool(names)]
        warned = [one.rstrip(".") for one in self.warnings[:_MOST_WARNINGS]]
        if len(self.warnings) > _MOST_WARNINGS:
            warned.append(f"{len(self.warnings) - _MOST_WARNINGS} more")
        parts.append(f"The runs warned: {'; '.join(warned)}." * bool(warned))
        return " ".join(filter(None, parts))


def load_runs(path: Path) -> list[MeasuredRun]:
    """Read what `run`, `demo` or `validate` wrote with `--json`.

    Raises:
        ConfigError: the file cannot be read, or was not written by these commands.
    """
    try:
        return [MeasuredRun.model_validate(one) for one in _entries(parse_json(read_text(path)))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = "not what `mirrorsd run`, `demo` or `validate` writes with --json"
        raise ConfigError(f"{path}: {msg} ({told(error).splitlines()[0]})") from error


def _entries(data: Any) -> list[Any]:
    if not isinstance(data, dict) or "schedules" not in data:
        return [data]
    shared = {**data["platform"], "warnings": data.get("warnings", [])}
    return [{**shared, **one["measured"], "schedule": one["schedule"]} for one in data["schedules"]]


def beside(plan: PlatformPlan, run: MeasuredRun) -> BesideMeasured:
    """Compare a run with what the plan predicts for its schedule, with the plan's acceptance.

    Raises:
        PlanError: it ran on lanes that the plan does not have, drafted at another temperature than the record's, or
            the plan cannot predict such a schedule.
    """
    platform, ran, record = plan.question.platform, run.schedule, plan.question.record
    lanes = {platform.lane_name(lane.name): lane.name for lane in plan.profile.lanes}
    for lane in (ran.target_lane, ran.draft_lane):
        if lane is not None and lane not in lanes:
            raise PlanError(f"it ran on {lane}, but the plan is for {', '.join(lanes)}")
    if record.assumed is None and ran.num_rows > 1 and run.temperature != record.temperature:
        raise PlanError(f"it ran at temperature {run.temperature:g}, but the record is of {record.temperature:g}")
    target, draft = lanes[ran.target_lane], None if ran.draft_lane is None else lanes[ran.draft_lane]
    is_plans_drafter = plan.question.draft.head is not None or ran.traits.has_draft_model
    drafter = plan.profile.drafter if is_plans_drafter and ran.drafter is not None else ran.drafter
    schedule = ran.model_copy(update={"target_lane": target, "draft_lane": draft, "drafter": drafter})
    evaluator = Evaluator(plan.profile, record, costs=plan.costs)
    if (reason := evaluator.missing(schedule)) is not None:
        raise PlanError(reason)
    pair = LanePair.of(schedule, platform)
    return BesideMeasured(
        name=schedule_name(schedule, pair.placement if draft else "alone") + run.caveat,
        place=str(pair) if draft else f"target on {target}",
        run=run,
        schedule=schedule,
        prediction=plan.doubts.added(schedule, evaluator.predict(schedule)),
    )


_SAME: Final = 0.01
"""Relative difference up to which both simulators count as equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """Times per token of the recommended schedule and of the fastest plain decoding, simulated by events.

    Differences are relative to the plan's predictions.
    """

    tpot_s: float
    relative_difference: float
    plain_tpot_s: float
    plain_relative_difference: float

    @property
    def agrees(self) -> bool:
        """Whether both times are as predicted."""
        return max(abs(self.relative_difference), abs(self.plain_relative_difference)) <= _SAME

    @property
    def in_words(self) -> str | None:
        """A sentence where a time is not as predicted; else None."""
        if self.agrees:
            return None
        times = ((self.tpot_s, self.relative_difference), (self.plain_tpot_s, self.plain_relative_difference))
        best, plain = (f"{milliseconds(seconds)} per token ({100 * by:+.1f} %)" for seconds, by in times)
        return (
            f"Simulated event by event, it takes {best}, and plain decoding {plain}: the two simulators disagree, so "
            "one of them is wrong. Please report it."
        )


def play(plan: PlatformPlan) -> Played:
    """Simulate a plan's recommended schedule and the fastest plain decoding by events, on all texts of the plan."""

    def played_s(one: PlannedSchedule) -> float:
        traces = simulate(one.schedule, plan.profile, plan.question.record, trace=False, costs=plan.costs)
        return sum(trace.decode_s for trace in traces) / one.prediction.num_tokens

    best_s, plain_s = played_s(plan.recommended), played_s(plan.plain)
    return Played(
        tpot_s=best_s,
        relative_difference=best_s / plan.recommended.tpot_s - 1,
        plain_tpot_s=plain_s,
        plain_relative_difference=plain_s / plan.plain.tpot_s - 1,
    )
