"""Measures models by name: calibrates an engine on this machine's lanes, and records acceptance in this process."""

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
    """Settings of a calibration; `calibrate.profiling.task.CalibrationTask` has meanings and defaults."""

    contexts: Required[tuple[int, int]]
    max_window: int
    max_branches: int
    quick: bool
    time_s: float | None


_PROFILE_BYTES: Final = 2 << 20
"""Disk space reserved for a profile and its samples until they are written; the shipped ones need a tenth of it."""


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
    """Measure this machine with these models, and write the profile and, next to it, all samples.

    Without a drafter no chain is measured, without heads no tree; `lanes` replace those of the (default) device. An
    interrupted calibration continues when called again (`unfinished` has its state).

    Raises:
        ConfigError: the contexts are no range or too long for the target, the file cannot be written, or the device is
            missing or does not support the weight format.
        LaneError: a lane died.
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
    """Return the task that `calibrate` measures, without models that the lanes cannot run; arguments as in `calibrate`.

    Raises `ConfigError` if the contexts are no range, or beyond a model's positions.
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
        # Without windows, passes of several rows are timed only for batches, as far as positions allow.
        room = engine.config.max_position - task.contexts[1] - 2
        return replace(task, max_window=min(task.max_window, room))
    draft = sizes.draft if isinstance(sizes.draft, ModelConfig) else engine.config
    what = f"the longest prompt, its new tokens and windows (--max-window {task.max_window})"
    for name, most in {pair.target: engine.config, name_of(pair.drafter): draft}.items():
        most.require_positions(task.contexts[1], task.max_window, what=what, whose=str(name))
    return task


def exit_layers_of(sizes: ModelSizes) -> tuple[int, ...]:
    """Return the layers of exits with trained adapters; without adapters, the default exit, if any."""
    if sizes.exits is not None:
        return sizes.exits.exit_layers
    return usual_exits(sizes.config.num_layers, getattr(sizes.draft, "exit_features", ()))


def contexts_of(lengths: Sequence[int], max_new_tokens: int) -> tuple[int, int]:
    """Return the fewest and the most cached tokens with which a round can start, for prompts of these lengths.

    Raises `ConfigError` without prompts, or if `max_new_tokens` is no whole number from 1 on.
    """
    if len(lengths) == 0:  # `not lengths` fails for an array
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
    """Record what each drafter would propose at every position of the target's own answer to every prompt.

    Args:
        pair: the models; all drafters are recorded, except streams if the device cannot run them
            (`mirrorsd.lane_choice.fitted_to`).
        prompts: the prompts to answer.
        path: the record's file; an interrupted recording continues when called again.
        reach: how many tokens, candidates and texts are recorded; None for the defaults.
        device: the device that computes; the record is valid for lanes on it. None for the default.
        num_threads: threads of this process; None leaves them unchanged.
        progress: called with the current prompt and the share that is done.

    Raises:
        ConfigError: there is no prompt, a prompt is too long for the models, the device is missing or does not support
            the weight format, or the file cannot be written.
        ModelError: a model cannot be loaded.
        RecordError: the target has random weights, an exit layer does not fit it, or the disk is full.
    """
    from calibrate.recording.recorded_models import load_models
    from calibrate.recording.recorder import record_acceptance

    if has_random_weights(pair.target_folder):
        raise RecordError(f"{pair.target} has random weights, so what it accepts is meaningless and is not recorded")
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
