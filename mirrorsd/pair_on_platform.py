"""Planning for users: two models and a platform by name, and what would pay there. Nothing here loads torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
from hwprofiles.engines import platform_run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from hwprofiles.weights.formats import weights_named
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question, recorded_question
from sim.derived.roofline import StoredModel

_VARIANT: Final = re.compile(r"-(instruct|base|chat|it)$")

if TYPE_CHECKING:
    from planner.platform_plan.platform_plan import PlatformPlan
    from sim.acceptance.assumed import AssumedAcceptance


class Accepted(NamedTuple):
    """What is known of acceptance, and what a person grants of it.

    Attributes:
        source: assumed, or recorded; None for public measurements of another pair.
        replayed: whether a record may be of other models than those asked about; the answer says so.
        trained_exits: whether early exits are taken as trained for the target, and so may be recommended.
    """

    source: AssumedAcceptance | AcceptanceRecord | None = None
    replayed: bool = False
    trained_exits: bool = False


def plan_pair(
    target: str | Path,
    draft: str | Path,
    platform: str | Path | Platform,
    *,
    acceptance: AssumedAcceptance | AcceptanceRecord | Accepted | None = None,
    lengths: tuple[int, int] = (512, 128),
    weights: tuple[str | None, str | None] = (None, None),
    changes: Mapping[str, str | float] | None = None,
) -> PlatformPlan:
    """What would pay on a platform, from data sheets and shapes; nothing is downloaded, measured or run.

    Args:
        target: a shipped model shape, or a Hugging Face `config.json` or its folder.
        draft: likewise.
        platform: a shipped one, or the path of one's own, or itself.
        acceptance: what the target would accept: assumed, or recorded, or either with what is granted of it; without
            it public measurements of another pair are assumed.
        lengths: tokens of a prompt, and new ones of an answer; a record has its own.
        weights: of the target, else `int4` where devices share one memory and `bf16` where they do not; and of the
            draft, else those of the target.
        changes: what if, by part and field: `{"npu.memory_efficiency": 0.5, "memory.bytes_per_s": "+10%"}`.

    Raises:
        ModelError: a model's shape is not known.
        ProfileError: a platform is not known, or its sheets lack what no guess can stand in for.
        ConfigError: a file or a change is wrong, or the record is of other models, which is not granted.
        PlanError: the models are no pair, or fit nowhere, or their positions do not hold such texts.
    """
    machine = platform if isinstance(platform, Platform) else load_platform(platform)
    machine = with_overrides(machine, changes) if changes else machine
    stored = weights_named(weights[0] or _usual_weights(machine))
    larger = StoredModel(shape=model_shape(target), weights=stored)
    smaller = StoredModel(shape=model_shape(draft), weights=weights_named(weights[1] or stored))
    known = acceptance if isinstance(acceptance, Accepted) else Accepted(acceptance)
    if isinstance(known.source, AcceptanceRecord):
        others = _other_models(known.source, (target, larger), (draft, smaller))
        if others and not known.replayed:
            asked = f"asked for are {larger.shape.name} with {smaller.shape.name}"
            hint = "replay it on purpose with --replayed-acceptance (replayed=True of Accepted)"
            raise ConfigError(f"the record is of {known.source.target} with {known.source.drafter}, {asked}: {hint}")
        question = recorded_question(
            machine, larger, smaller, known.source, replayed=others, trained_exits=known.trained_exits
        )
        return plan_platform(question)
    question = assumed_question(
        machine,
        larger,
        smaller,
        given=known.source,
        num_prompt_tokens=lengths[0],
        num_new_tokens=lengths[1],
        trained_exits=known.trained_exits,
    )
    return plan_platform(question)


def with_engine(platform: str | Path, engine: str, weights: str | None) -> Platform:
    """Return a platform on whose GPUs an engine runs a target of such weights, or of the usual ones.

    Raises:
        ConfigError: a file is wrong, or nobody measured the engine with such weights.
        ProfileError: the platform is not known.
    """
    machine = load_platform(platform)
    return platform_run_by(machine, engine, weights_named(weights or _usual_weights(machine)))


def _other_models(record: AcceptanceRecord, *asked: tuple[str | Path, StoredModel]) -> bool:
    """Whether a record is of other models than those asked for, each by the name it was given and by its own."""
    recorded = record.target, record.drafter
    return any(
        name is None or _plain_name(name) not in (_plain_name(given), _plain_name(model.shape.name))
        for name, (given, model) in zip(recorded, asked, strict=True)
    )


def _plain_name(name: str | Path) -> str:
    """A model's name without its folders, and without what makes it an instructed one: shapes do not know that."""
    return _VARIANT.sub("", Path(name).name.lower())


def _usual_weights(platform: Platform) -> str:
    shared = any(len(pool.devices) > 1 for pool in platform.memory_pools.values())
    return "int4" if shared else "bf16"
