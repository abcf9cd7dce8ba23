"""Plans for two models and a platform, given by names or paths (`mirrorsd.plan_pair`). Nothing here loads torch."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from decoding.errors import ConfigError, ModelError, PlanError, ProfileError
from decoding.files import named_path
from decoding.record import AcceptanceRecord
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import (
    cache_scale_bits,
    head_weights,
    platform_run_by,
    published_for,
    require_reading,
)
from hwprofiles.machines.assumed_parts import require_speeds
from hwprofiles.model_shape import ModelShape
from hwprofiles.models.head_shapes import HEADS, LOOKUP, head_named, head_shape
from hwprofiles.overrides import with_devices, with_overrides
from hwprofiles.platform import Platform, load_platform, of_this_make
from hwprofiles.profile import Profile
from hwprofiles.weights.formats import stored_weights, weights_in_name, weights_named
from mirrorsd.same_model import plain_name, require_own_head, shape_called
from planner.platform_plan.measured_run import ComparedRuns, LeftOutRun, beside, load_runs
from planner.platform_plan.platform_plan import PlatformPlan, plan_platform
from planner.platform_plan.question import Question, assumed_question, recorded_question
from runtime.drafters.registry import CAUSAL_LM_KIND, SHIPPED_FOLDER, kind_of, shipped_names
from runtime.models.model_folder import is_model_name
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import Texts
from sim.acceptance.replay import record_of
from sim.derived.calibrated_lanes import CalibratedLanes, calibrated_platform
from sim.derived.roofline import StoredModel

_USUAL: Final = Texts(prompt_length=512, num_tokens=128)
_IN_SHARED_MEMORY: Final = "int4"
"""Default weight format if devices share one memory and the model is published with more bits."""


class Accepted(NamedTuple):
    """The known acceptance, and what the user allows.

    Attributes:
        source: a record or assumed rates; None for the default rates, public measurements of another pair.
        replayed: whether a record may be of other models than those asked about; the answer then says so.
        trained_exits: whether early exits count as trained for the target, so that they may be recommended.
    """

    source: AssumedAcceptance | AcceptanceRecord | None = None
    replayed: bool = False
    trained_exits: bool = False


class PlannedMachine(NamedTuple):
    """The machine to plan for, and devices added to it.

    Attributes:
        platform: a shipped platform's name, the path of a platform's file, a platform, or a calibrated profile.
        add: one or more devices, see `hwprofiles.overrides.with_devices`.
        engine: the engine that runs the target on GPUs; costs of rows are those measured with it.
    """

    platform: str | Path | Platform | Profile
    add: Sequence[str] | str = ()
    engine: str | None = None


class Storage(NamedTuple):
    """How both models are stored: weight formats in the user's spelling, and bits of cached keys and values."""

    target: str | None = None
    draft: str | None = None
    cache_bits: int = 16


def plan_pair(
    target: str | Path,
    draft: str | Path,
    platform: str | Path | Platform | Profile | PlannedMachine,
    *,
    acceptance: AssumedAcceptance | AcceptanceRecord | Accepted | None = None,
    lengths: tuple[int | None, int | None] = (None, None),
    weights: Storage | tuple[str | None, str | None] | str = (None, None),
    changes: Mapping[str, str | float] | None = None,
) -> PlatformPlan:
    """Predict from data sheets and model shapes what would pay on a platform; nothing is downloaded, measured or run.

    Args:
        target: a shipped model shape, or a Hugging Face `config.json` or its folder.
        draft: likewise, or a head of the target or prompt lookup, by a name in `hwprofiles.models.head_shapes.HEADS`.
        platform: a shipped platform's name, the path of a platform's file, a platform, or a calibrated profile; or
            any of these with added devices.
        acceptance: how often the target accepts drafted tokens: assumed or recorded; None for public measurements of
            another pair.
        lengths: tokens of the prompt and of the answer. By default those of assumed texts, else 512 and 128 or the
            nearest that were calibrated. A record has its own.
        weights: formats of target and draft; a single format is the target's; `Storage` also has the caches'.
            The target's default is the calibrated format, else the one in its name, else as published (mostly `bf16`),
            but at most `int4` if devices share one memory and no card (added ones do not count) has its own.
            The draft's default is the one in its name, else the calibrated one, else the target's (`bf16` for
            published heads of a server's target).
        changes: numbers to change, by part and field: `{"npu.memory_efficiency": 0.5, "memory.bytes_per_s": "+10%"}`.

    Raises:
        ModelError: a model's shape is not known.
        ProfileError: the platform is not known, or its sheets lack a number that is never guessed.
        ConfigError: a file, a change, a length or `acceptance` is wrong, or the record is of other models and
            `replayed` is false.
        PlanError: the draft cannot draft for the target, the models fit nowhere, or have too few positions.
    """
    asked = question_of(
        target, draft, platform, acceptance=acceptance, lengths=lengths, weights=weights, changes=changes
    )
    return plan_platform(asked)


plan = plan_pair
"""The same as `plan_pair`, under the name of the command-line verb: `mirrorsd.plan`."""


def question_of(
    target: str | Path,
    draft: str | Path,
    platform: str | Path | Platform | Profile | PlannedMachine,
    *,
    acceptance: AssumedAcceptance | AcceptanceRecord | Accepted | None = None,
    lengths: tuple[int | None, int | None] = (None, None),
    weights: Storage | tuple[str | None, str | None] | str = (None, None),
    changes: Mapping[str, str | float] | None = None,
) -> Question:
    """Return the question that `plan_pair` answers, with names and files looked up; arguments and errors are its."""
    base, add, engine = platform if isinstance(platform, PlannedMachine) else PlannedMachine(platform)
    profile = base if isinstance(base, Profile) else None
    if profile is not None:
        engine = _engine_beside(profile, engine)

    def run_by_engine(machine: Platform) -> Platform:
        return machine if engine is None else platform_run_by(machine, engine)

    machine = _machine_of(base)
    stored = Storage(weights) if isinstance(weights, str) else Storage(*weights)
    larger, smaller = _stored_models(target, draft, run_by_engine(machine), profile, stored)
    lanes = None if profile is None else _calibrated(profile, (target, larger), (draft, smaller))
    added = [add] if isinstance(add, str) else add
    machine = run_by_engine(with_devices(machine, added))
    for model, option in ((larger, "--weights"), (smaller, "--draft-weights")):
        require_reading(machine.devices.values(), model.weights, option)
    if changes:
        _require_changeable(changes, lanes)
        machine = with_overrides(machine, changes)
    given = [str(base), *(one.partition("@")[0].strip() for one in added)]
    described = [one for one in machine.devices if lanes is None or one not in lanes.names]
    require_speeds(machine, described, [one for one in given if one.endswith((".yaml", ".yml"))])
    known = acceptance if isinstance(acceptance, Accepted) else Accepted(acceptance)
    if known.source is not None:
        record_of(known.source)  # raises ConfigError for anything else
    if isinstance(known.source, AcceptanceRecord):
        if tuple(lengths) != (None, None):
            raise ConfigError("a record has texts of its own: leave out lengths (--context, --new-tokens)")
        others = _other_models(known.source, (target, larger), (draft, smaller))
        if others and not known.replayed:
            asked = f"asked for are {larger.shape.name} with {smaller.shape.name}"
            hint = "to use it all the same, give --replayed-acceptance (in Python, Accepted(record, replayed=True))"
            raise ConfigError(f"the record is of {known.source.target} with {known.source.drafter}, {asked}; {hint}")
        question = recorded_question(
            machine, larger, smaller, known.source, replayed=others, trained_exits=known.trained_exits
        )
        return replace(question, calibrated=lanes)
    usual = _USUAL if lanes is None or not lanes.has_target else _USUAL.within(lanes.profile)
    if known.source is not None and known.source.has_own_texts:
        usual = known.source.texts
    question = assumed_question(
        machine,
        larger,
        smaller,
        given=known.source,
        num_prompt_tokens=usual.prompt_length if lengths[0] is None else lengths[0],
        num_new_tokens=usual.num_tokens if lengths[1] is None else lengths[1],
        trained_exits=known.trained_exits,
    )
    return replace(question, calibrated=lanes)


def weights_for_all(questions: Mapping[str, Mapping[str, Question]]) -> str | None:
    """Return the weight format in which to compare machines; None if the questions have the same one already.

    Questions are by machine and draft. Their formats differ if some machines share one memory and others do not.
    """
    asked = {question.target.weights for drafts in questions.values() for question in drafts.values()}
    return _IN_SHARED_MEMORY if _IN_SHARED_MEMORY in asked and len(asked) > 1 else None


def _engine_beside(profile: Profile, engine: str | None) -> str | None:
    """Return the engine that runs devices added to a profile: the profile's if it was imported, else `engine`."""
    imported = str(profile.host.get("engine", ""))
    if engine_of(imported) is None:
        return engine
    if engine is not None and engine_of(engine) != engine_of(imported):
        raise ConfigError(f"--engine {engine}: the profile is of {imported}, which has to run added devices too")
    return imported


def _machine_of(base: str | Path | Platform | Profile) -> Platform:
    if isinstance(base, Profile):
        return calibrated_platform(base)
    return base if isinstance(base, Platform) else of_this_make(load_platform(base))


def _stored_models(
    target: str | Path, draft: str | Path, machine: Platform, profile: Profile | None, asked: Storage
) -> tuple[StoredModel, StoredModel]:
    """Return both models in the given weight formats, or else in the defaults of `plan_pair`."""
    shape = shape_called(target)
    told = None if profile is not None else weights_in_name(target, shape.published_in)
    stored = weights_named((told or _usual_weights(shape, machine, profile)) if asked.target is None else asked.target)
    scale_bits = cache_scale_bits(machine.devices.values(), stored, asked.cache_bits)
    larger = StoredModel(shape=shape, weights=stored, cache_bits=asked.cache_bits, cache_scale_bits=scale_bits)
    head = None if named_path(draft).exists() else head_named(str(draft))
    if head is not None:
        require_own_head(str(draft), shape)
    small = _draft_shape(draft) if head is None else head_shape(head, larger.shape)
    if head == "mtp" and small.borrows_lm_head and not shape.mtp_layers:
        others = ", ".join(one for one in HEADS if one != "mtp")
        raise PlanError(
            f"draft {str(draft)!r}: {shape.name} has no MTP layers (mtp_layers of its shape is 0); give a draft model, "
            f"or one of {others}"
        )
    told = None if profile is not None else weights_in_name(draft, small.published_in)
    timed = None if profile is None or head is not None else profile.draft_dtype
    usual = timed or (stored if head is None or profile is not None else head_weights(head, small, stored))
    drafts_in = weights_named((told or usual) if asked.draft is None else asked.draft)
    return larger, replace(larger, shape=small, weights=drafts_in, head=head)


def beside_measured(plan: PlatformPlan, path: str | Path, target: str | Path, draft: str | Path) -> ComparedRuns:
    """Compare the runs in a file with a plan's predictions; runs that it cannot predict are listed with the reason.

    Raises `ConfigError` if the file has no runs, runs of another model, or none that the plan can predict.
    """
    question, found, left_out = plan.question, [], []
    for run in load_runs(Path(path)):
        weights = None if run.dtype == "float32" else weights_named(run.dtype)
        is_of_it = _is_called(run.target.removeprefix("shape:"), target, question.target)
        if not is_of_it or weights != question.target.weights:
            asked = f": ask with --weights {weights}" if is_of_it and weights is not None else ""
            raise ConfigError(
                f"{path}: the runs are of {run.target} in {run.dtype}, but the plan is of {question.target}{asked}"
            )
        drafter = run.schedule.drafter if run.schedule.traits.has_draft_model else None
        try:
            if drafter is not None and not _is_called(drafter, draft, question.draft):
                raise PlanError(f"it drafted with {drafter}, but the plan is for {question.draft}")
            found.append(beside(plan, run))
        except PlanError as error:
            left_out.append(LeftOutRun(run, str(error)))
    if not found:
        why = f"the plan can predict none of the runs: {left_out[0].reason}" if left_out else "has no runs"
        raise ConfigError(f"{path}: {why}")
    return ComparedRuns(found, left_out)


def runnable_drafter(draft: str | Path) -> str | None:
    """Return the name by which `mirrorsd run` finds the draft of a plan; None if only its shape is known."""
    name, folder = str(draft), named_path(draft)
    if folder.is_dir():
        return str(folder.resolve())
    return name if name in shipped_names() or is_model_name(name) else None


def _draft_shape(name: str | Path) -> ModelShape:
    """Return the shape of a draft model; the error for an unknown one also names the heads."""
    try:
        return shape_called(name)
    except ModelError as error:
        why = str(error)
        with suppress(ModelError):
            kind = kind_of(SHIPPED_FOLDER / name if str(name) in shipped_names() else named_path(name))
            why = why if kind == CAUSAL_LM_KIND else f"{name}: holds {kind}, which has no shape to plan with."
        raise ModelError(f"{why} (A draft is a model, or one of {', '.join(HEADS)}.)") from error


def _calibrated(
    profile: Profile, target: tuple[str | Path, StoredModel], draft: tuple[str | Path, StoredModel]
) -> CalibratedLanes:
    timed = (profile.target, profile.dtype, target), (profile.drafter, profile.draft_dtype or profile.dtype, draft)
    has_target, has_draft = (
        dtype != "float32" and model.weights == weights_named(dtype) and name and _is_called(name, given, model)
        for name, dtype, (given, model) in timed
    )
    has_target, has_draft = bool(has_target) and profile.num_layers == target[1].shape.num_layers, bool(has_draft)
    is_lookup = draft[1].head == LOOKUP
    if not (has_target and (has_draft or is_lookup)):
        _require_bytes(profile, target[1], draft[1])
    return CalibratedLanes(profile=profile, has_target=has_target, has_draft=has_draft, is_lookup=is_lookup)


def _require_bytes(profile: Profile, *asked: StoredModel) -> None:
    """Raise `ProfileError` for models that were not timed, if the profile does not say how many bytes its models read.

    Without bytes, a lane's speed does not follow from its times.
    """
    if any(lane.layer is not None and lane.layer.bytes_per_call for lane in profile.lanes):
        return
    timed, others = " and ".join(filter(None, (profile.target, profile.drafter))), " and ".join(map(str, asked))
    raise ProfileError(
        f"the profile has times of {timed}, but not how many bytes they read, so {others} cannot be predicted from it: "
        "give `mirrorsd import` the names of the timed models (--target, --draft, --weights)"
    )


def _require_changeable(changes: Mapping[str, str | float], lanes: CalibratedLanes | None) -> None:
    """Raise `ConfigError` for a change to a lane whose costs were measured: its tables would not change."""
    for key in changes:
        lane = key.rpartition(".")[0]
        if lanes is not None and lane in lanes.names and (lanes.has_target or lanes.has_draft):
            msg = f"{key!r} cannot be changed, since costs of the models on {lane} were measured"
            raise ConfigError(f"{msg}; change a part that is known by its data sheet, or plan for other models")


def _other_models(record: AcceptanceRecord, *asked: tuple[str | Path, StoredModel]) -> bool:
    """Return whether a record is of other models than those asked for; each is (name given by the user, model)."""
    finder = next((one.drafter for one in record.chains_of("prompt_lookup")), None)
    recorded = record.target, finder if asked[1][1].head == LOOKUP else record.drafter
    return any(name is None or not _is_called(name, *one) for name, one in zip(recorded, asked, strict=True))


def _is_called(name: str, given: str | Path, model: StoredModel) -> bool:
    return plain_name(name) in (plain_name(given), plain_name(model.shape.name))


def _usual_weights(target: ModelShape, platform: Platform, profile: Profile | None) -> str:
    if profile is not None:
        return "bf16" if profile.dtype == "float32" else profile.dtype
    is_ours = bool(platform.lanes) and all(one.kind == "cpu" for one in platform.devices.values())
    published = target.published_in if is_ours else published_for(target, platform.devices.values())
    usual = (published, _IN_SHARED_MEMORY) if _has_shared_memory_only(platform) else (published,)
    return min(usual, key=lambda name: stored_weights(name).bits)


def _has_shared_memory_only(platform: Platform) -> bool:
    """Return whether devices share a memory, and no accelerator has a memory of its own."""
    pooled = {one for pool in platform.memory_pools.values() if len(pool.devices) > 1 for one in pool.devices}
    return bool(pooled) and all(one.kind == "cpu" for name, one in platform.devices.items() if name not in pooled)
