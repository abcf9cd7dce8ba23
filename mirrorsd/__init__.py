"""Does speculative decoding pay here? The Python API to measure, simulate, search, run and compare.

Each name is loaded when it is first used, so that simulating and searching never load torch::

    import mirrorsd

    profile = mirrorsd.load_profile("profile.yaml")
    record = mirrorsd.AcceptanceRecord.load("record.npz")
    plan = mirrorsd.make_plan(mirrorsd.SearchSpace(), profile, record)
    print(plan.verdict.text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrate.prompts import Prompt as Prompt
    from calibrate.prompts import bundled_prompts as bundled_prompts
    from calibrate.prompts import load_prompts as load_prompts
    from decoding.errors import MirrorsdError as MirrorsdError
    from decoding.record import AcceptanceRecord as AcceptanceRecord
    from decoding.schedule import Schedule as Schedule
    from decoding.schedule import load_schedule as load_schedule
    from decoding.schedule import save_schedule as save_schedule
    from decoding.trace import Trace as Trace
    from hwprofiles.profile import Profile as Profile
    from hwprofiles.profile import load_profile as load_profile
    from mirrorsd.measure_pair import calibrate as calibrate
    from mirrorsd.measure_pair import contexts_of as contexts_of
    from mirrorsd.measure_pair import record as record
    from mirrorsd.model_pair import ModelPair as ModelPair
    from mirrorsd.model_pair import find_pair as find_pair
    from mirrorsd.pair_on_platform import PlannedMachine as PlannedMachine
    from mirrorsd.pair_on_platform import plan as plan
    from mirrorsd.pair_on_platform import plan_pair as plan_pair
    from mirrorsd.prompt_tokens import encode as encode
    from mirrorsd.simulation import make_plan as make_plan
    from mirrorsd.simulation import predict as predict
    from mirrorsd.simulation import simulate as simulate
    from mirrorsd.text_engine import Decoding as Decoding
    from mirrorsd.text_engine import TextEngine as TextEngine
    from mirrorsd.text_engine import generate as generate
    from planner.plan import Plan as Plan
    from planner.platform_plan.advice import advice as advice
    from planner.search.space import SearchSpace as SearchSpace
    from runtime.engine import Engine as Engine
    from sim.acceptance.assumed import Bernoulli as Bernoulli
    from sim.acceptance.assumed import ByTask as ByTask
    from sim.acceptance.assumed import PositionRates as PositionRates
    from sim.acceptance.assumed import parse_acceptance as parse_acceptance
    from sim.acceptance.replay import Acceptance as Acceptance
    from sim.batch_prediction import best_by_batch as best_by_batch
    from sim.batch_prediction import switch_off_at as switch_off_at

_HOMES = {
    "calibrate.prompts": ("Prompt", "bundled_prompts", "load_prompts"),
    "decoding.errors": ("MirrorsdError",),
    "decoding.record": ("AcceptanceRecord",),
    "decoding.schedule": ("Schedule", "load_schedule", "save_schedule"),
    "decoding.trace": ("Trace",),
    "hwprofiles.profile": ("Profile", "load_profile"),
    "mirrorsd.measure_pair": ("calibrate", "contexts_of", "record"),
    "mirrorsd.model_pair": ("ModelPair", "find_pair"),
    "mirrorsd.pair_on_platform": ("PlannedMachine", "plan", "plan_pair"),
    "mirrorsd.prompt_tokens": ("encode",),
    "mirrorsd.simulation": ("make_plan", "predict", "simulate"),
    "mirrorsd.text_engine": ("Decoding", "TextEngine", "generate"),
    "planner.plan": ("Plan",),
    "planner.platform_plan.advice": ("advice",),
    "planner.search.space": ("SearchSpace",),
    "runtime.engine": ("Engine",),
    "sim.acceptance.assumed": ("Bernoulli", "ByTask", "PositionRates", "parse_acceptance"),
    "sim.acceptance.replay": ("Acceptance",),
    "sim.batch_prediction": ("best_by_batch", "switch_off_at"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - names are written down once


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name not in _HOME_OF:
        msg = f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOME_OF))}"
        raise AttributeError(msg)
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
