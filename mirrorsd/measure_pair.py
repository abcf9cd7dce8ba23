"""Measuring models by name: an engine on this machine's lanes is calibrated; models in this process are recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Required, TypedDict, Unpack

from calibrate.profiling.calibration import calibrate as measure
from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.task import CalibrationTask, require_range
from calibrate.profiling.unfinished import Unfinished
from calibrate.prompts import Prompt
from calibrate.recording.reach import Reach, usual_exits
from decoding.errors import ConfigError, RecordError
from decoding.files import require_writable, reserved
from decoding.progress import ReportProgress
from decoding.record import AcceptanceRecord
from decoding.validation import require_whole
from hwprofiles.profile import Profile
from mirrorsd.lane_choice import device_lanes, fitted_to, usual_device
from mirrorsd.model_pair import ModelPair, folder_of, name_of
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from planner.search.space import SearchSpace
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.config import ModelConfig
from runtime.models.model_folder import NamedFolder, has_random_weights


class CalibrationSettings(TypedDict, total=False):
    """What may be chosen of a calibration; `calibrate.profiling.task.CalibrationTask` has meanings and defaults."""

    contexts: Required[tuple[int, int]]
    max_window: int
    max_branches: int
    quick: bool
    time_s: float | None


_PROFILE_BYTES: Final = 2 << 20
"""Kept free for a profile and its samples until they are written; ours have a tenth of that."""


def calibrate(
    pair: ModelPair,
    path: str | Path,
    *,
    device: str | None = None,
    lanes: Sequence[LaneSpec] | None = None,
    progress: ReportProgress = lambda _step, _share: None,
    unfinished: Unfinished | None = None,
    **settings: Unpack[CalibrationSettings],
) -> Profile:
    """Measure this machine with these models and write the profile, and next to it all that was timed.

    Without a drafter no chain is measured, without heads no tree; `lanes` replace those of the (usual) device. An
    interrupted calibration goes on when called again (`unfinished` tells of it).

    Raises:
        ConfigError: the contexts are no range or too long for the target, the file cannot be written, or the device is
            not there or does not compute with these weights.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
    """
    require_writable(Path(path))
    lanes = device_lanes(device or usual_device(pair), pair.dtype) if lanes is None else lanes
    unfinished = unfinished or Unfinished(Path(path))
    with new_engine(pair, lanes) as engine, reserved(Path(path).parent, _PROFILE_BYTES):
        calibration = measure(
            engine, calibration_task(engine, pair, lanes, **settings), progress, unfinished=unfinished
        )
    profile = calibration.save(Path(path))
    unfinished.remove()
    return profile


def calibration_task(
    engine: Engine, pair: ModelPair, lanes: Sequence[LaneSpec], **settings: Unpack[CalibrationSettings]
) -> CalibrationTask:
    """Return what `calibrate` measures, less what the lanes cannot run; arguments are those of `calibrate`.

    Raises `ConfigError` where the contexts are no range, or beyond a model's positions.
    """
    require_range(settings["contexts"])
    pair, left_out = fitted_to(pair, [lane.device.name for lane in lanes])
    sizes = ModelSizes.of(engine.config, folder_of(pair.drafter), folder_of(pair.exits), pair.dtype)
    sizes = sizes.without_draft_streams() if left_out else sizes
    task = CalibrationTask(
        target=pair.target,
        drafter=name_of(pair.drafter),
        sizes=sizes,
        lanes=tuple(lanes),
        exit_layers=exit_layers_of(sizes),
        heads=pair.head_methods,
        max_tree=max(SearchSpace().tree_sizes),
        left_out=left_out,
        **settings,
    )
    if not (pair.drafter or pair.head_methods):
        what = "the longest prompt and its new tokens"
        engine.config.require_positions(task.contexts[1], 0, what=what, whose=pair.target)
        # no windows: passes of several rows, as those of batches, are timed as far as they fit
        room = engine.config.max_position - task.contexts[1] - 2
        return replace(task, max_window=min(task.max_window, room))
    draft = sizes.draft if isinstance(sizes.draft, ModelConfig) else engine.config
    what = f"the longest prompt, its new tokens and windows (--max-window {task.max_window})"
    for name, most in {pair.target: engine.config, name_of(pair.drafter): draft}.items():
        most.require_positions(task.contexts[1], task.max_window, what=what, whose=str(name))
    return task


def exit_layers_of(sizes: ModelSizes) -> tuple[int, ...]:
    """Return the layers of exits with trained adapters; the default exit, if any, where there are none."""
    if sizes.exits is not None:
        return sizes.exits.exit_layers
    return usual_exits(sizes.config.num_layers, getattr(sizes.draft, "exit_features", ()))


def contexts_of(lengths: Sequence[int], max_new_tokens: int) -> tuple[int, int]:
    """Return the fewest and the most cached tokens at which a round can start, for prompts of such lengths.

    Raises `ConfigError` if there is no prompt or new token, and for parts of one.
    """
    if len(lengths) == 0:  # of an array, too
        raise ConfigError("there is no prompt, so no context to measure")
    require_whole("max_new_tokens", max_new_tokens, 1)
    return max(0, min(lengths) - 1), max(lengths) + max_new_tokens


def record(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    path: str | Path,
    *,
    reach: Reach | None = None,
    device: str | None = None,
    num_threads: int | None = None,
    progress: ReportProgress = lambda _step, _share: None,
) -> AcceptanceRecord:
    """Record what the pair would do at every position of its own texts of every prompt.

    Args:
        pair: the models; everything that drafts is recorded, but for streams where the device runs none
            (`mirrorsd.lane_choice.fitted_to`).
        prompts: what is asked.
        path: where the record goes; an interrupted recording goes on when called again.
        reach: how far; None for the defaults.
        device: what computes, of those that lanes are on: the record holds for lanes there. None for the default.
        num_threads: to compute with, in this process; None leaves them alone.
        progress: called with the prompt under way and the share that is done.

    Raises:
        ConfigError: there is no prompt; the device is not there, or does not compute with this form of weights; a
            prompt is too long for the models; or the file cannot be written.
        ModelError: a model cannot be loaded.
        RecordError: an exit layer does not fit the target, or the disk gets full.
    """
    from calibrate.recording.recorded_models import load_models
    from calibrate.recording.recorder import record_acceptance

    if has_random_weights(pair.target_folder):
        raise RecordError(f"{pair.target} has random weights: what it would accept means nothing, and is not recorded")
    if not prompts:
        raise ConfigError("there is no prompt to record")
    require_writable(Path(path))
    device = device or usual_device(pair)
    pair, _ = fitted_to(pair, [device])
    encoded = encode(prompts, pair.target_folder)
    progress("loading the models", 0.0)
    models = load_models(
        NamedFolder(pair.target, pair.target_folder),
        pair.drafter,
        pair.exits,
        heads=pair.heads,
        dtype=pair.dtype,
        device=device,
        num_threads=num_threads,
    )
    return record_acceptance(models, encoded, reach or Reach(), Path(path), progress)
