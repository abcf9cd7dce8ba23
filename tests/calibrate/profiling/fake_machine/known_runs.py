"""Runs of the machine made of laws, and profiles that state exactly its laws in a loop."""

from calibrate.fitting.ratios import AnchorRatio
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.passes import decode
from calibrate.profiling.samples import CalibrationRun
from decoding.schedule import Schedule
from hwprofiles.latency_table import Anchor
from hwprofiles.profile import Contention, Profile
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.laws import NUM_LAYERS, Laws
from tests.calibrate.profiling.fake_machine.weather import Weather

CONTEXTS = (20, 220)
PLAIN = Schedule(method="autoregressive", target_lane="cpu0")
DRAFTING = {"target_lane": "cpu0", "draft_lane": "cpu1", "num_speculative_tokens": 4}
SPECULATIVE = Schedule(method="speculative", **DRAFTING)
WITH_FEATURES = SPECULATIVE.model_copy(update={"exit_features": True})
MIRROR = Schedule(method="mirror", root_source="exit", exit_layer=6, exit_top_k=2, **DRAFTING)
SCHEDULES = [PLAIN, SPECULATIVE, WITH_FEATURES, MIRROR]
PAIR = ("cpu0", "cpu1")


def anchor_of(laws: Laws) -> Anchor:
    return Anchor(context=100, seconds=laws.target_s("verify", 1, 100, None), relative_error=0.0)


def anchors_of(engine: FakeEngine) -> Anchors:
    return Anchors({name: engine.load_target(name) for name in engine.laws}, context=100, clock=engine.clock)


def profile_of(laws: dict[str, Laws], *slowdown: float) -> Profile:
    """A profile of exactly the laws of lanes in a loop."""
    contention = [Contention(lanes=PAIR, slowdown=slowdown, source="laws")] if slowdown else []
    lanes = tuple(
        one.lane(name, range(1, 10), CONTEXTS).model_copy(update={"anchor": anchor_of(one)})
        for name, one in laws.items()
    )
    return Profile(
        host={}, target="t", drafter="d", dtype="float32", num_layers=NUM_LAYERS, lanes=lanes, contention=contention
    )


def run_of(
    schedule: Schedule, *slowdown: float, weather: Weather | None = None, **laws: float
) -> tuple[CalibrationRun, Profile]:
    """(a run, the profile of its lanes): both lanes obey the same laws, the second is slower."""
    engine = FakeEngine({"cpu0": Laws(**laws), "cpu1": Laws(speed=0.8, **laws)}, weather=weather or Weather())
    in_loop = {name: Laws(speed=one.speed) for name, one in engine.laws.items()}
    return decode(engine, anchors_of(engine), schedule, CONTEXTS, 16), profile_of(in_loop, *slowdown)


def value_of(found: AnchorRatio | tuple[AnchorRatio, dict[str, float]] | None) -> float | None:
    """Of what `level` or `compare_run` say."""
    if found is None:
        return None
    return found.value if isinstance(found, AnchorRatio) else found[0].value
