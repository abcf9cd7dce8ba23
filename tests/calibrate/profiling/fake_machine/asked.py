"""What calibration is asked for in its tests: a small task, on a machine whose laws are known."""

from dataclasses import replace
from functools import cache

from calibrate.profiling.calibration import calibrate as calibrate_all
from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.task import CalibrationTask
from hwprofiles.profile import Profile
from runtime.drafters.language_model.folder import DrafterFolderConfig, StreamConfig
from runtime.models.config import ModelConfig
from runtime.storage.weight_folder import SpeculatorsConfig, TargetShape, Verifier
from tests.calibrate.profiling.fake_machine.engine import LANES, FakeEngine
from tests.calibrate.profiling.fake_machine.laws import NUM_LAYERS, Laws
from tests.calibrate.profiling.fake_machine.weather import Weather
from tests.tiny_models import tiny_config

CONTEXTS = (20, 220)
SPEEDS = {"cpu0": 1.0, "cpu1": 0.8, "cpu0+1": 1.7}
TOLERANCE = {"rel": 1e-6}


def calibrate(*args, **options) -> Profile:
    return calibrate_all(*args, **options).profile


def draft_config(exit_features: tuple[int, ...] = (), num_streams: int = 0) -> DrafterFolderConfig:
    return DrafterFolderConfig(
        speculators_config=SpeculatorsConfig(algorithm="x", verifier=Verifier(name_or_path="t")),
        target_shape=TargetShape.of(tiny_config()),
        draft_vocab_size=40,
        metadata={},
        source_layers=(1, 2),
        exit_features=exit_features,
        feature_layer=0,
        streams=StreamConfig(num_streams=num_streams, start_layer=1, rank=2) if num_streams else None,
    )


def target_config() -> ModelConfig:
    return replace(tiny_config(), num_layers=NUM_LAYERS)


def task(*, exit_features: tuple[int, ...] = (), num_streams: int = 0, **changes: object) -> CalibrationTask:
    draft = draft_config(exit_features, num_streams)
    sizes = ModelSizes(config=target_config(), draft=draft, exits=None, dtype="bfloat16")
    usual = CalibrationTask(
        target="t", drafter="d", sizes=sizes, lanes=LANES, exit_layers=(4, 6), contexts=CONTEXTS, quick=True
    )
    return replace(usual, **changes)


def machine(surprise: float = 1.0, weather: Weather | None = None, **laws: float) -> FakeEngine:
    """The second core is slower, both together are faster; in runs all lanes behave alike."""
    by_lane = {name: Laws(speed=speed, **laws) for name, speed in SPEEDS.items()}
    return FakeEngine(by_lane, surprise=surprise, weather=weather or Weather())


@cache
def usual_profile() -> Profile:
    """What comes of the usual task on the usual machine."""
    return calibrate(machine(), task())


def pairs_of(profile: Profile) -> dict[tuple[str, str], tuple[float, float]]:
    return {entry.lanes: entry.slowdown for entry in profile.contention}


HEADS = {"eagle": "eagle3", "medusa": "medusa", "streams": "speculative_streaming"}
