"""Plans of targets that are too large for a card, and what tests ask of them."""

from hwprofiles.machines.layer_split import LayerSplit
from planner.plan_engines import engines_of
from planner.platform_plan.platform_plan import plan_platform
from tests.planner.platform_plan.conftest import question

MODELS = ("llama-3.1-70b", "llama-3.2-1b")


def planned(platform="rtx3090", weights="q4_k_m", **asked):
    return plan_platform(question(platform, weights=weights, **{"models": MODELS, "lengths": (64, 24)} | asked))


def split_of(one):
    """The split of a planned schedule's target."""
    return LayerSplit.of(one.pair.target)


def command(plan, one):
    (engine,) = engines_of(plan, one)
    assert engine.engine == "llama.cpp"
    return engine.options


def plain_beside(plan):
    """The fastest plain decoding of a target that one memory holds whole."""
    plain = (one for one in plan.ranking if not one.schedule.num_speculative_tokens)
    return next(one for one in plain if split_of(one) is None)
