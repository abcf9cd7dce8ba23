"""Planning for users: two models and a platform by name, and what would pay there. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from decoding.record import AcceptanceRecord
from hwprofiles.model_shape import WeightFormat, model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question, recorded_question
from sim.derived.roofline import StoredModel

if TYPE_CHECKING:
    from planner.platform_plan.platform_plan import PlatformPlan
    from sim.acceptance.assumed import AssumedAcceptance


def plan_pair(
    target: str | Path,
    draft: str | Path,
    platform: str | Path | Platform,
    *,
    acceptance: AssumedAcceptance | AcceptanceRecord | None = None,
    lengths: tuple[int, int] = (512, 128),
    weights: tuple[WeightFormat | None, WeightFormat | None] = (None, None),
    changes: Mapping[str, str | float] | None = None,
) -> PlatformPlan:
    """What would pay on a platform, from data sheets and shapes; nothing is downloaded, measured or run.

    Args:
        target: a shipped model shape, or a Hugging Face `config.json` or its folder.
        draft: likewise.
        platform: a shipped one, or the path of one's own, or itself.
        acceptance: what the target would accept: assumed, or recorded, perhaps of another pair; without it public
            measurements of another pair are assumed.
        lengths: tokens of a prompt, and new ones of an answer; a record has its own.
        weights: of the target, else `int4` where devices share one memory and `bf16` where they do not; and of the
            draft, else those of the target.
        changes: what if, by part and field: `{"npu.memory_efficiency": 0.5, "memory.bytes_per_s": "+10%"}`.

    Raises:
        ModelError: a model's shape is not known.
        ProfileError: a platform is not known, or its sheets lack what no guess can stand in for.
        ConfigError: a file or a change is wrong.
        PlanError: the models fit nowhere.
    """
    machine = platform if isinstance(platform, Platform) else load_platform(platform)
    machine = with_overrides(machine, changes) if changes else machine
    stored = weights[0] or _usual_weights(machine)
    larger = StoredModel(shape=model_shape(target), weights=stored)
    smaller = StoredModel(shape=model_shape(draft), weights=weights[1] or stored)
    if isinstance(acceptance, AcceptanceRecord):
        return plan_platform(recorded_question(machine, larger, smaller, acceptance))
    question = assumed_question(
        machine,
        larger,
        smaller,
        given=acceptance,
        num_prompt_tokens=lengths[0],
        num_new_tokens=lengths[1],
    )
    return plan_platform(question)


def _usual_weights(platform: Platform) -> WeightFormat:
    shared = any(len(pool.devices) > 1 for pool in platform.memory_pools.values())
    return "int4" if shared else "bf16"
