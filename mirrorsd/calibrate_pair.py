"""Calibration from models by name: an engine on this machine's lanes, measured and written down as a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorsd.model_pair import ModelPair, Progress, folder_of, name_of

if TYPE_CHECKING:
    from calibrate.profiling.calibration import CalibrationTask
    from calibrate.profiling.model_sizes import ModelSizes
    from calibrate.prompts import EncodedPrompt
    from hwprofiles.profile import Profile
    from runtime.engine import Engine
    from runtime.lanes.lane import LaneSpec


def calibrate(
    pair: ModelPair,
    path: str | Path,
    *,
    contexts: tuple[int, int],
    max_window: int = 8,
    quick: bool = False,
    time_s: float | None = None,
    progress: Progress = lambda _step, _share: None,
) -> Profile:
    """Measure this machine with these models and write the profile.

    Args:
        pair: the models; without a drafter no chain is measured, without heads no tree.
        path: where the profile goes.
        contexts: the fewest and the most cached tokens that schedules will meet, see `contexts_of`.
        max_window: most drafted tokens per round.
        quick: fewer sizes and repeats: a rougher profile.
        time_s: repeats that do not fit are left out, and the profile's notes say so; one of everything is measured in
            any case. None is a minute if quick, and no limit otherwise.
        progress: called with what is under way and the share that is done.

    Raises:
        ConfigError: the contexts are no range, or the file cannot be written.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
    """
    from calibrate.profiling.calibration import calibrate as measure
    from hwprofiles.profile import save_profile
    from mirrorsd.text_engine import lane_specs, new_engine

    lanes = lane_specs()
    with new_engine(pair, lanes) as engine:
        task = calibration_task(
            engine, pair, lanes, contexts=contexts, max_window=max_window, quick=quick, time_s=time_s
        )
        profile = measure(engine, task, progress)
    save_profile(profile, Path(path))
    return profile


def calibration_task(
    engine: Engine,
    pair: ModelPair,
    lanes: Sequence[LaneSpec],
    *,
    contexts: tuple[int, int],
    max_window: int,
    quick: bool,
    time_s: float | None = None,
) -> CalibrationTask:
    """What `calibrate` measures with an engine at hand; arguments as there."""
    from calibrate.profiling.calibration import CalibrationTask
    from calibrate.profiling.model_sizes import ModelSizes
    from planner.search.space import SearchSpace

    sizes = ModelSizes.of(engine.config, folder_of(pair.drafter), folder_of(pair.exits), pair.dtype)
    return CalibrationTask(
        target=pair.target,
        drafter=name_of(pair.drafter),
        sizes=sizes,
        lanes=tuple(lanes),
        exit_layers=exit_layers_of(sizes),
        contexts=contexts,
        max_window=max_window,
        heads=pair.head_methods,
        max_tree=max(SearchSpace().tree_sizes),
        quick=quick,
        time_s=time_s,
    )


def exit_layers_of(sizes: ModelSizes) -> tuple[int, ...]:
    """Exits that have trained adapters; half depth where none has."""
    return sizes.exits.exit_layers if sizes.exits is not None else (sizes.config.num_layers // 2,)


def contexts_of(prompts: Sequence[EncodedPrompt], max_new_tokens: int) -> tuple[int, int]:
    """The fewest and the most cached tokens at which a round of these prompts can start."""
    lengths = [len(prompt.ids) for prompt in prompts]
    return max(0, min(lengths) - 1), max(lengths) + max_new_tokens
