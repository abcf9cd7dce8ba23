"""What every overhead of a profile buys: how much worse predictions are without it, on the committed demos.

    python benchmarks/ablations.py                 about two minutes; runs nothing, works it out from raw data
    python benchmarks/ablations.py --folder F --series NAME     of older demos, whose raw data an earlier commit has

There are two kinds of runs to compare with: the texts that the demos ran (other prompts in each, up to 256 new tokens),
and the runs that their calibrations held back to check themselves (16 new tokens, other windows than those that
overheads were fitted to).

The profile is fitted again without the overhead, so that levels of parts take up what they can. What counts are the
runs that it changes. One that buys less than `LEAST_GAIN` of median absolute error on either kind of runs is removed
from the product, where it changes `LEAST_RUNS` runs at least: fewer make no median. `removed` keeps what the removed
ones bought, by the same rules, when they were still there, and a series whose raw data are no longer in the tree keeps
what it said. Writes benchmarks/results/ablations.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from _common import EMBEDDED, RESULTS, arguments, formats, measured_pair, read_result, write_result

from calibrate.profiling.fitted_profile import Correction, fitted_profile
from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.run_times import compare_run
from calibrate.profiling.samples import Samples, load_samples
from calibrate.profiling.task import CalibrationTask
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.lane_profile import EVENTS
from hwprofiles.profile import Profile, load_profile
from mirrorsd.compare.runs import Measured, load_runs, load_traces
from mirrorsd.lane_choice import fitted_to
from mirrorsd.measure_pair import exit_layers_of
from mirrorsd.model_pair import ModelPair, find_pair, folder_of, name_of
from planner.search.space import SearchSpace
from runtime.backends.lane_device import Device
from runtime.models.config import ModelConfig
from sim.evaluator import Evaluator

LEAST_GAIN: Final = 0.005
LEAST_RUNS: Final = 5
DEMOS: Final = "demos"
"""The series that is in the tree."""
LEVEL_BY_ROWS: Final = "level_by_rows"
"""No overhead: levels of their own for several rows, which can only be left out of the fit."""
_CHANGED: Final = 1e-4
"""Relative change of a prediction from which on a run counts among those that an overhead changes."""
_OUT: Final = RESULTS / "ablations.json"
_DATA: Final = "texts that demos ran, of up to 256 new tokens, and calibration's own held-back runs of 16"

Errors = tuple[float, ...]
"""Predicted over measured time, less one, of every run of a kind."""


class Demo(NamedTuple):
    """The raw data of one demo."""

    profile: Profile
    samples: Samples
    record: AcceptanceRecord
    measured: Measured
    schedules: Sequence[Mapping[str, Any]]
    paces: Mapping[str, float]

    @classmethod
    def load(cls, folder: Path) -> Demo:
        """Read the demo that a folder keeps."""
        profile, result = load_profile(folder / "profile.yaml"), read_result(folder / "demo.json")
        return cls(
            profile,
            load_samples(folder / (profile.samples or "")),
            AcceptanceRecord.load(folder / "record.npz"),
            load_runs(folder / "runs.json.gz", load_traces(folder / "traces.json.gz")),
            result["schedules"],
            result.get("paces", {}),
        )

    def errors(self, profile: Profile) -> dict[str, Errors]:
        """Return how far a profile is off, at the anchors' speed, on the demo's schedules and on held-back runs."""
        texts = self.measured.texts(self.record)
        compared = [compare_run(run, profile) for run in self.samples.runs if run.is_check]
        at_present = profile.at_paces(self.paces)
        return {
            "schedules": tuple(
                Evaluator(at_present, replace(texts, prompts=texts.prompts[: entry["num_prompts"]]))
                .predict(Schedule(**entry["schedule"]))
                .tpot_s
                / entry["measured"]["tpot_s_at_anchor"]
                - 1
                for entry in self.schedules
            ),
            "held_back_runs": tuple(1 / found[0].value - 1 for found in compared if found is not None),
        }


def main() -> None:
    """Work everything out and write it."""
    options = arguments(__doc__, folder=RESULTS / "demos", series=(DEMOS, "name of these demos")).parse_args()
    pair = find_pair(EMBEDDED)
    known = read_result(_OUT) if _OUT.exists() else {"overheads": {}, "removed": {}}
    demos = [Demo.load(folder) for folder in sorted(options.folder.iterdir())]
    found = {name: known["overheads"].get(name, {}) | {options.series: bought} for name, bought in gains(demos, pair)}
    write_result(
        _OUT,
        {
            "measured": measured_pair(pair),
            "formats": formats(),
            "data": _DATA,
            "least_gain": LEAST_GAIN,
            "least_runs": LEAST_RUNS,
            "overheads": found,
            "removed": known["removed"],
        },
    )


def gains(demos: Sequence[Demo], pair: ModelPair) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what every overhead buys on the demos together, by its name."""
    tasks = [task_of(demo.profile, demo.samples, pair) for demo in demos]

    def errors(*without: Correction) -> list[dict[str, Errors]]:
        both = zip(tasks, demos, strict=True)
        return [demo.errors(fitted_profile(task, demo.samples, without=without)) for task, demo in both]

    whole = errors()
    for name in (*EVENTS, LEVEL_BY_ROWS):
        refitted = errors(name)
        yield name, {kind: gain(_together(whole, kind), _together(refitted, kind)) for kind in whole[0]}


def gain(errors: Errors, refitted: Errors) -> dict[str, Any]:
    """Return the median absolute errors with an overhead and without it, of the runs that it changes and of all."""
    both = list(zip(errors, refitted, strict=True))
    changed = [each for each in both if abs(each[1] - each[0]) > _CHANGED]
    return {"changed": len(changed), "of": len(errors), **_medians(changed), "all": _medians(both)}


def _medians(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    return {
        name: median(abs(one[place]) for one in pairs) if pairs else None
        for place, name in enumerate(("error", "refitted"))
    }


def task_of(profile: Profile, samples: Samples, pair: ModelPair) -> CalibrationTask:
    """Return what the calibration of a demo was asked for; steps of heads are timed at the first context."""
    pair, left_out = fitted_to(pair, [Device.of_lane(lane.name).name for lane in profile.lanes])
    config = ModelConfig.from_folder(pair.target_folder)
    sizes = ModelSizes.of(config, folder_of(pair.drafter), folder_of(pair.exits), profile.dtype)
    layer, timed = profile.lanes[0].layer, [visit.cell.measurement for visit in samples.visits]
    assert layer is not None, "a calibration without a target"
    first = next((one.context for one in timed if one.part == "head_step"), layer.contexts[0])
    return CalibrationTask(
        target=pair.target,
        drafter=name_of(pair.drafter),
        sizes=sizes.without_draft_streams() if left_out else sizes,
        lanes=profile.lanes,
        exit_layers=exit_layers_of(sizes),
        contexts=(first, layer.contexts[-1]),
        heads=pair.head_methods,
        max_tree=max(SearchSpace().tree_sizes),
        quick=True,
        left_out=left_out,
    )


def _together(errors: Sequence[Mapping[str, Errors]], kind: str) -> Errors:
    return tuple(one for of_demo in errors for one in of_demo[kind])


if __name__ == "__main__":
    main()
