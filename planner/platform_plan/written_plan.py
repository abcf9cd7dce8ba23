"""The files of a plan: a schedule, a profile and an acceptance, which simulate to its predictions."""

from pathlib import Path
from typing import TYPE_CHECKING

from costs.tabulated import tabulated
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from decoding.yaml_file import save_yaml
from planner.platform_plan.schedules import most_rows

if TYPE_CHECKING:
    from hwprofiles.profile import Profile
    from planner.platform_plan.platform_plan import PlatformPlan


def runnable_schedule(plan: "PlatformPlan", drafter: str | None = None) -> Schedule:
    """Return the recommended schedule with lanes as `mirrorsd run` calls them, and its draft as `drafter`, if given."""
    schedule, lane_name = plan.recommended.schedule, plan.question.platform.lane_name
    names: dict[str, str | None] = {"target_lane": lane_name(schedule.target_lane)}
    if schedule.draft_lane is not None:
        names |= {"draft_lane": lane_name(schedule.draft_lane), "drafter": drafter or schedule.drafter}
    return schedule.model_copy(update=names)


def written_profile(plan: "PlatformPlan", drafter: str | None = None) -> "Profile":
    """Return a plan's profile with all costs in tables; names are those of `runnable_schedule`."""
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
    return found.model_copy(update=named | models)


def save_acceptance(plan: "PlatformPlan", path: Path) -> None:
    """Write the assumed acceptance and its texts, for `--acceptance`; `ConfigError` where it was recorded."""
    assumed = plan.question.assumed
    if assumed is None:
        raise ConfigError(f"{path}: the acceptance of this plan was recorded: simulate with that --record")
    tasks = {task: rates.model_dump(mode="json", exclude_defaults=True) for task, rates in assumed.by_task.items()}
    save_yaml({"tasks": tasks, "texts": assumed.texts.model_dump(mode="json")}, path)
