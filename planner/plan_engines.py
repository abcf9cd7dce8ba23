"""Which engines can run the schedules of a plan, and of which engine the predicted times are."""

from collections.abc import Iterator

from decoding.schedule import Schedule
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import ANYWHERE, EAGER, IK, LAW_ENGINE, engine_on, loaders_on, reads, stands_for
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.engine_commands import OURS, RunsOn, drafting_head, runs_on
from planner.platform_plan.memory_fit import needs_of
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.verdict import times
from planner.wording import listing
from sim.batch_prediction import BatchPrediction


def engines_of(plan: PlatformPlan, one: PlannedSchedule, num_sequences: int = 1) -> tuple[RunsOn, ...]:
    """Return the engines that can run a schedule on its lanes.

    Transformers drafts for a single sequence only, and all engines but llama.cpp need room on the cards for embeddings.
    """
    return _engines_of(plan, one.schedule, one.pair, num_sequences)


def _engines_of(plan: PlatformPlan, schedule: Schedule, pair: LanePair, num_sequences: int) -> tuple[RunsOn, ...]:
    question = plan.question
    target, draft = question.target, question.draft
    models = (target, draft) if schedule.traits.has_draft_model and draft.head is None else (target,)
    found = runs_on(question.platform, pair, schedule, models, drafting_head(draft))
    drafts = schedule.num_speculative_tokens > 0
    whole = needs_of(question, pair, num_sequences=num_sequences, alone=not drafts, has_host=False)
    barred = {EAGER} if num_sequences > 1 and drafts else set()
    if not all(need.fits for need in whole):
        barred |= {one.engine for one in found} - {ANYWHERE, IK}
    return tuple(engine for engine in found if engine.engine not in barred)


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
    """Return the fastest schedule that the engine of the predicted times runs, or else that any engine runs."""
    runnable = [one for one in (plan.recommended, *plan.ranking) if not one.needs_training and engines_of(plan, one)]
    return next((one for one in runnable if is_by_its_engine(plan, one)), next(iter(runnable), None))


def is_by_its_engine(plan: PlatformPlan, one: PlannedSchedule, num_sequences: int = 1) -> bool:
    """Return whether the engine whose times are predicted for a schedule (or a variant of that engine) can run it.

    Where no engine's times are known, as on CPUs, true only if none is known for the recommended schedule either:
    plain decoding on a CPU must not stand in for what an engine does on a GPU.
    """
    timed = engine_of_times(plan, one)
    if timed is None:
        return engine_of_times(plan, plan.recommended) is None
    engines = engines_of(plan, one, num_sequences)
    return any(found.engine == OURS or engine_of(found.engine) == timed for found in engines)


def engine_of_times(plan: PlatformPlan, one: PlannedSchedule) -> str | None:
    """Return the engine whose times the prediction of a schedule stands for; None where none is known."""
    device = plan.question.platform.device(plan.question.platform.members(one.pair.target)[0])
    return engine_of(engine_on(device, plan.question.target.weights) or "")


def beside_engine(plan: PlatformPlan) -> Iterator[str]:
    """Say what an engine can run instead of the recommended schedule, if the engine of the times cannot run that."""
    runnable, timed = best_with_engine(plan), engine_of_times(plan, plan.recommended)
    if runnable is None:
        return
    if timed is not None and not is_by_its_engine(plan, runnable):
        num = len(plan.question.platform.members(runnable.pair.target))
        heads = plan.question.target.shape.num_heads
        is_uneven = timed == LAW_ENGINE and heads % num
        why = f": {heads} attention heads cannot be split evenly over {num} GPUs" if is_uneven else ""
        yield f"{timed}, whose times are predicted, runs nothing here{why}"
    if runnable is plan.recommended:
        return
    engine = engines_of(plan, runnable)[0].engine
    gain = f"{runnable.place} ({times(plan.compared(runnable))} plain decoding)"
    what = gain if runnable.schedule.num_speculative_tokens else f"plain decoding, {runnable.place}"
    if engines_of(plan, plan.recommended):
        yield f"{engine}, whose times are predicted, does not run that: the best that it runs is {what}"
    else:
        yield f"no engine runs that yet: the best that one can run is {what}, with {engine}"


def doubts_of_times(plan: PlatformPlan) -> Iterator[str]:
    """Say where the times are those of an engine that cannot load the weights, or that stands in for another."""
    question, weights = plan.question, plan.question.target.weights
    devices = [question.platform.device(one) for one in question.platform.members(plan.recommended.pair.target)]
    engines = dict.fromkeys(filter(None, (engine_on(device, weights) for device in devices)))
    unable = [engine for engine in engines if not reads(engine, weights)]
    if unable:
        loaders = loaders_on(devices[0], weights)
        choose = f"choose --engine {loaders[0]}, or" if loaders else "choose"
        yield (
            f"Times are those of {listing(unable)}, which does not load {weights}: no engine that loads them was "
            f"measured on such a GPU; {choose} --weights int8 or int4."
        )
    if question.calibrated is None or not question.calibrated.has_target:
        yield from filter(None, map(stands_for, engines))
