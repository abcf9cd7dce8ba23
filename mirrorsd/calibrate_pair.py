"""Calibration from models by name: an engine on this machine's lanes, measured and written down as a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

from decoding.files import require_writable
from mirrorsd.model_pair import ModelPair, Progress, folder_of, name_of

if TYPE_CHECKING:
    from calibrate.profiling.model_sizes import ModelSizes
    from calibrate.profiling.task import CalibrationTask
    from hwprofiles.profile import Profile
    from runtime.engine import Engine
    from runtime.lanes.lane import LaneSpec


class CalibrationSettings(TypedDict, total=False):
    """What may be chosen of a calibration; `calibrate.profiling.task.CalibrationTask` has meanings and defaults."""

    contexts: Required[tuple[int, int]]
    max_window: int
    max_branches: int
    quick: bool
    time_s: float | None


def calibrate(
    pair: ModelPair,
    path: str | Path,
    *,
    device: str | None = None,
    lanes: Sequence[LaneSpec] | None = None,
    progress: Progress = lambda _step, _share: None,
    **settings: Unpack[CalibrationSettings],
) -> Profile:
    """Measure this machine with these models and write the profile, and next to it all that was timed.

    Without a drafter no chain is measured, without heads no tree; `lanes` replace those of the (usual) device.

    Raises:
        ConfigError: the contexts are no range, the file cannot be written, or the device is not there or does not
            compute with these weights.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
    """
    from calibrate.profiling.calibration import calibrate as measure
    from mirrorsd.lane_choice import device_lanes, usual_device
    from mirrorsd.text_engine import new_engine

    require_writable(Path(path))
    lanes = device_lanes(device or usual_device(pair), pair.dtype) if lanes is None else lanes
    with new_engine(pair, lanes) as engine:
        calibration = measure(engine, calibration_task(engine, pair, lanes, **settings), progress)
    return calibration.save(Path(path))


def calibration_task(
    engine: Engine, pair: ModelPair, lanes: Sequence[LaneSpec], **settings: Unpack[CalibrationSettings]
) -> CalibrationTask:
    """What `calibrate` measures with an engine at hand, without what the lanes cannot run; arguments as there."""
    from calibrate.profiling.model_sizes import ModelSizes
    from calibrate.profiling.task import CalibrationTask
    from mirrorsd.lane_choice import fitted_to
    from planner.search.space import SearchSpace

    pair, left_out = fitted_to(pair, [lane.device.name for lane in lanes])
    sizes = ModelSizes.of(engine.config, folder_of(pair.drafter), folder_of(pair.exits), pair.dtype)
    sizes = sizes.without_draft_streams() if left_out else sizes
    return CalibrationTask(
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


def exit_layers_of(sizes: ModelSizes) -> tuple[int, ...]:
    """Exits that have trained adapters; the usual one where none has."""
    if sizes.exits is not None:
        return sizes.exits.exit_layers
    return (usual_exit(sizes.config.num_layers, getattr(sizes.draft, "exit_features", ())),)


def usual_exit(num_layers: int, feature_layers: Sequence[int]) -> int:
    """Where an exit is that nobody trained: half depth, and not before the layers whose states the draft reads."""
    return min(max(num_layers // 2, *feature_layers, 1), max(1, num_layers - 1))


def contexts_of(lengths: Sequence[int], max_new_tokens: int) -> tuple[int, int]:
    """The fewest and the most cached tokens at which a round of prompts of so many tokens can start."""
    return max(0, min(lengths) - 1), max(lengths) + max_new_tokens
