"""A question that many tests ask, and its plans on two platforms."""

import pytest

from hwprofiles.model_shape import model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import load_platform
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question
from sim.acceptance.assumed import Bernoulli
from sim.derived.roofline import StoredModel


def question(
    platform="lunar-lake",
    *,
    weights="int4",
    rate=None,
    given=None,
    changes=None,
    models=("qwen3-14b", "qwen3-0.6b"),
    lengths=(128, 48),
):
    machine = load_platform(platform) if isinstance(platform, str) else platform
    return assumed_question(
        with_overrides(machine, changes) if changes else machine,
        *(StoredModel(shape=model_shape(name), weights=weights) for name in models),
        given=given if rate is None else Bernoulli(rate),
        num_prompt_tokens=lengths[0],
        num_new_tokens=lengths[1],
    )


@pytest.fixture(scope="session")
def lunar_lake():
    return plan_platform(question())


@pytest.fixture(scope="session")
def h100x2():
    return plan_platform(question("h100x2", weights="bf16"))
