"""The files that a plan writes: schedule, profile and acceptance; `mirrorsd simulate` predicts the same from them."""

from math import hypot, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from costs.tabulated import tabulated
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from decoding.yaml_file import save_yaml
from planner.platform_plan.schedules import most_rows
from sim.error_shares import relative_error
from sim.evaluator import Evaluator

if TYPE_CHECKING:
    from hwprofiles.profile import Profile
    from planner.platform_plan.platform_plan import PlatformPlan


def runnable_schedule(plan: "PlatformPlan", drafter: str | None = None) -> Schedule:
    """Return the recommended schedule with the lane names of `mirrorsd run` and, if given, `drafter` as its draft."""
    schedule, lane_name = plan.recommended.schedule, plan.question.platform.lane_name
    names: dict[str, str | None] = {"target_lane": lane_name(schedule.target_lane)}
    if schedule.draft_lane is not None:
        names |= {"draft_lane": lane_name(schedule.draft_lane), "drafter": drafter or schedule.drafter}
    return schedule.model_copy(update=names)


def written_profile(plan: "PlatformPlan", drafter: str | None = None) -> "Profile":
    """Return a plan's profile with all costs in tables; names are those of `runnable_schedule`.

    A profile has one error for ratios of schedules: that of the fastest speculation to plain decoding in the plan.
    """
    question, record = plan.question, plan.question.record
    found = tabulated(
        plan.profile,
        plan.costs,
        contexts=record.contexts,
        most_rows=most_rows(),
        prompt_rows={prompt.prompt_length - 1 for prompt in record.prompts},
        exits=record.exit_layers,
    )
    name = question.platform.lane_name
    named = {
        "lanes": tuple(lane.model_copy(update={"name": name(lane.name)}) for lane in found.lanes),
        "links": tuple(one.model_copy(update={"lanes": tuple(map(name, one.lanes))}) for one in found.links),
        "contention": tuple(one.model_copy(update={"lanes": tuple(map(name, one.lanes))}) for one in found.contention),
    }
    models = {"drafter": drafter or found.drafter}
    if record.assumed is None and question.acceptance.status == "measured":
        models = {fact: getattr(record, fact) for fact in ("target", "drafter", "dtype")}
    error = {"schedule_error": hypot(found.schedule_error, _speculation_error(plan) / sqrt(2))}
    return found.model_copy(update=named | models | error)


def _speculation_error(plan: "PlatformPlan") -> float:
    """Return the relative error of the fastest speculation that the plan's `Doubts` add and the profile cannot hold."""
    best = plan.drafting
    if best is None:
        return 0.0
    in_profile = Evaluator(plan.profile, plan.question.record, costs=plan.costs).predict(best.schedule).errors
    return relative_error({cause: one for cause, one in best.prediction.errors.items() if cause not in in_profile})


def save_acceptance(plan: "PlatformPlan", path: Path) -> None:
    """Write the assumed acceptance and its texts, for `--acceptance`; `ConfigError` if it was recorded."""
    assumed = plan.question.assumed
    if assumed is None:
        raise ConfigError(f"{path}: the acceptance of this plan was recorded: simulate with that --record")
    tasks = {task: rates.model_dump(mode="json", exclude_defaults=True) for task, rates in assumed.by_task.items()}
    save_yaml({"tasks": tasks, "texts": assumed.texts.model_dump(mode="json")}, path)
