"""Which engines run what a plan has ranked, and whose times its predictions are."""

from collections.abc import Iterator

from decoding.schedule import Schedule
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import EAGER, LAW_ENGINE, engine_on, loaders_on, reads, stands_for
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.platform_plan.runs_on import OURS, RunsOn, drafting_head, runs_on
from planner.verdict import times
from planner.wording import listing
from sim.batch_prediction import BatchPrediction


def engines_of(plan: PlatformPlan, one: PlannedSchedule, num_sequences: int = 1) -> tuple[RunsOn, ...]:
    """Return the engines that can run a schedule where it was planned: transformers drafts for one sequence alone."""
    return _engines_of(plan, one.schedule, one.pair, num_sequences)


def _engines_of(plan: PlatformPlan, schedule: Schedule, pair: LanePair, num_sequences: int) -> tuple[RunsOn, ...]:
    question = plan.question
    target, draft = question.target, question.draft
    models = (target, draft) if schedule.traits.has_draft_model and draft.head is None else (target,)
    found = runs_on(question.platform, pair, schedule, models, drafting_head(draft))
    drafts_many = num_sequences > 1 and schedule.num_speculative_tokens > 0
    return tuple(engine for engine in found if not drafts_many or engine.engine != EAGER)


def engine_of_batch(plan: PlatformPlan, one: BatchPrediction | None) -> str:
    """Return the name of the engine that runs the speculation of a batch, for a table's cell."""
    if one is None:
        return "\N{EN DASH}"
    engines = engines_of_batch(plan, one)
    return engines[0].engine if engines else "none known"


def engines_of_batch(plan: PlatformPlan, one: BatchPrediction) -> tuple[RunsOn, ...]:
    """Return the engines that can run a schedule for so many sequences."""
    return _engines_of(plan, one.schedule, LanePair.of(one.schedule, plan.question.platform), one.batch_size)


def best_with_engine(plan: PlatformPlan) -> PlannedSchedule | None:
    """Return the fastest schedule that the engine runs whose times are predicted; if there is none, that any runs."""
    runnable = [one for one in (plan.recommended, *plan.ranking) if not one.needs_training and engines_of(plan, one)]
    return next((one for one in runnable if is_by_its_engine(plan, one)), next(iter(runnable), None))


def is_by_its_engine(plan: PlatformPlan, one: PlannedSchedule, num_sequences: int = 1) -> bool:
    """Return whether an engine runs a schedule whose times, or those of its kin, are predicted; true where none is.

    Nothing is known of engines on CPUs, where plain decoding is no stand-in for what another one does on a GPU.
    """
    own = engine_of_times(plan, one)
    if own is None:
        return engine_of_times(plan, plan.recommended) is None
    return any(found.engine == OURS or engine_of(found.engine) == own for found in engines_of(plan, one, num_sequences))


def engine_of_times(plan: PlatformPlan, one: PlannedSchedule) -> str | None:
    """Return the engine whose times are predicted for a schedule; None where none is known."""
    device = plan.question.platform.device(plan.question.platform.members(one.pair.target)[0])
    return engine_of(engine_on(device, plan.question.target.weights) or "")


def beside_engine(plan: PlatformPlan) -> Iterator[str]:
    """Say what an engine runs in place of the recommended schedule, where that is not it or the times are not its."""
    known, own = best_with_engine(plan), engine_of_times(plan, plan.recommended)
    if known is not None and own is not None and not is_by_its_engine(plan, known):
        num, heads = len(plan.question.platform.members(known.pair.target)), plan.question.target.shape.num_heads
        why = f": {num} GPUs do not share {heads} attention heads evenly" if own == LAW_ENGINE and heads % num else ""
        yield f"{own}, whose times these are, runs nothing here{why}"
    if known is None or known is plan.recommended:
        return
    gain, engine = f"{known.place} ({times(plan.compared(known))} plain decoding)", engines_of(plan, known)[0].engine
    found = gain if known.schedule.num_speculative_tokens else f"plain decoding, {known.place}"
    if engines_of(plan, plan.recommended):
        yield f"{engine}, whose times these are, does not run that: the best that it runs is {found}"
    else:
        yield f"no engine runs that yet: {engine} runs the best that one can, {found}"


def doubts_of_times(plan: PlatformPlan) -> Iterator[str]:
    """Say where times are of an engine that does not load the weights, or is not the one that was asked about."""
    question, weights = plan.question, plan.question.target.weights
    devices = [question.platform.device(one) for one in question.platform.members(plan.recommended.pair.target)]
    engines = dict.fromkeys(filter(None, (engine_on(device, weights) for device in devices)))
    if unread := [engine for engine in engines if not reads(engine, weights)]:
        loaders = loaders_on(devices[0], weights)
        named = f"--engine {loaders[0]} takes another, " if loaders else ""
        yield (
            f"Times are those of {listing(unread)}, which does not load {weights}: none that does was measured on "
            f"such a GPU; {named}--weights int8 or int4 what it loads."
        )
    if question.calibrated is None or not question.calibrated.has_target:
        yield from filter(None, map(stands_for, engines))
