"""A target of a size that people use, end to end: calibrated, predicted, run for real, and compared.

    python benchmarks/large_pair.py                          Qwen3-8B with Qwen3-0.6B, both in int4: 23 minutes
    python benchmarks/large_pair.py --target shape:smollm2-360m --draft shape:smollm2-135m --minutes 1

The models have random weights and the shapes of those that are named: times are those of such models, texts mean
nothing. What is accepted is assumed, by the rates that `mirrorsd plan` assumes, and the runs replay it. Compiled lanes
are calibrated (`--lanes`; `mirrorsd models memory` says what one takes); some schedules are predicted, and run in turn
on every prompt with anchors of the machine's speed around the runs and in them, as `mirrorsd demo` does.

After every prompt benchmarks/results/large-pair.json is written anew, so that Ctrl-C keeps what is there. Nothing else
should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple

from _common import RESULTS, arguments, formats, measured_pair, write_result

from calibrate.profiling.calibration import calibrate
from calibrate.profiling.lane_parts import LaneParts
from calibrate.profiling.task import CalibrationTask
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.lane_cores import PlacedLane, split_pairs, whole_lanes
from hwprofiles.other_use import OtherUse
from mirrorsd.compare.measured_answer import JudgedRuns, judge_runs
from mirrorsd.compare.numbers import ratio_entry
from mirrorsd.compare.outcome_entries import (
    accuracy,
    changed_slowdowns,
    disturbed_runs,
    platform_entry,
    schedule_entries,
)
from mirrorsd.compare.run_in_turn import anchors_of, run_in_turn
from mirrorsd.compare.runs import Measured, Run
from mirrorsd.lane_choice import chosen_lanes
from mirrorsd.measure_pair import calibration_task
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.simulation import in_words, make_plan
from mirrorsd.text_engine import ReplayEngine
from planner.plan import Plan
from planner.platform_plan.default_acceptance import ALTERNATIVES, COVERAGE, default_rates, mean_rate
from planner.search.search import rank
from planner.search.space import SearchSpace
from runtime.lanes.lane import LaneSpec
from runtime.models.config import ModelConfig
from runtime.wire.measurement import Measurement
from runtime.worker.timing import MeasureRole
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts

RESULT: Final = RESULTS / "large-pair.json"
WINDOWS: Final = (2, 4)
EXIT_TOP_K, DRAFT_TOP_K = 4, 2
_PROMPT_LENGTH: Final = 16
_NUM_BRANCHES: Final = 16
"""Of a round, at most: calibration times a step of so many rows in any case."""
_DIGITS: Final = 6


class Session(NamedTuple):
    """One way through: what is known so far."""

    options: argparse.Namespace
    pair: ModelPair
    lanes: tuple[LaneSpec, ...]
    record: AcceptanceRecord
    others: OtherUse
    start_s: float

    def say(self, step: str) -> None:
        """What is under way."""
        print(f"{time.monotonic() - self.start_s:6.0f} s  {step}", file=sys.stderr, flush=True)


def main() -> None:
    """Go the whole way."""
    parser = arguments(
        __doc__,
        target="shape:qwen3-8b",
        draft="shape:qwen3-0.6b",
        lanes=("openvino:CPU@0,openvino:CPU@1", "to run on, as many as fit in memory with both models"),
        minutes=(15.0, "of calibration"),
        tokens=(12, "new ones of every prompt"),
        prompts=8,
        out=RESULT,
    )
    parser.add_argument("--form", default="int4", choices=["int4", "int8", "bfloat16"], help="of all weights")
    options = parser.parse_args()
    others, start_s = OtherUse(), time.monotonic()
    pair = find_pair(options.target, drafter=options.draft, heads=(), dtype=options.form)
    lanes = chosen_lanes(None, options.lanes, pair)
    exit_layer = ModelConfig.from_folder(pair.target_folder).num_layers // 2
    session = Session(
        options=options,
        pair=pair,
        lanes=lanes,
        record=assumed_record(exit_layer, num_texts=options.prompts, num_tokens=options.tokens),
        others=others,
        start_s=start_s,
    )
    with ReplayEngine(pair, lanes, session.record) as engine:
        prepare(session, engine)
        profile = calibrate(
            engine, _task(session, engine), lambda step, share, /: session.say(f"calibrating, {share:.0%}: {step}")
        ).profile
        session.say("predicting")
        plan = make_plan(SearchSpace(), profile, session.record)
        run_and_write(session, engine, plan, schedules_of(lanes, exit_layer, WINDOWS))


def assumed_record(exit_layer: int, *, num_texts: int, num_tokens: int) -> AcceptanceRecord:
    """Texts drawn from the mean of the rates that `mirrorsd plan` assumes, with an exit halfway."""
    rate = mean_rate(default_rates(2))
    texts = Texts(num_texts=num_texts, num_tokens=num_tokens, prompt_length=_PROMPT_LENGTH)
    coverage = {exit_layer: tuple(COVERAGE[0.5])}
    return Bernoulli(round(rate, 2), texts=texts, alternative_rates=ALTERNATIVES, exit_coverage=coverage).record


def schedules_of(lanes: Sequence[LaneSpec], exit_layer: int, windows: Sequence[int]) -> list[Schedule]:
    """Plain on every lane; synchronous, split and on a whole lane; mirror from the exit and from the draft's own roots.

    The target is on the first of two lanes that are split, and mirror has the shortest window.
    """
    plain = [Schedule(method="autoregressive", target_lane=lane.name) for lane in lanes]
    split, whole = split_pairs(lanes)[:1], whole_lanes(lanes)[:1]
    placements = [*split, *((lane, lane) for lane in whole)]
    synchronous = [
        Schedule(method="speculative", target_lane=target, draft_lane=draft, num_speculative_tokens=window)
        for target, draft in placements
        for window in windows
    ]
    return [*plain, *synchronous, *(one for pair in split for one in mirrors(pair, exit_layer, min(windows)))]


def mirrors(lanes: tuple[str, str], exit_layer: int, window: int) -> Iterator[Schedule]:
    """Mirror from the exit, and from the draft's own roots."""
    shared: dict[str, Any] = {"method": "mirror", "num_speculative_tokens": window}
    shared |= {"target_lane": lanes[0], "draft_lane": lanes[1]}
    yield Schedule(root_source="exit", exit_layer=exit_layer, exit_top_k=EXIT_TOP_K, **shared)
    yield Schedule(root_source="draft", draft_top_k=DRAFT_TOP_K, **shared)


def prepare(session: Session, engine: ReplayEngine) -> None:
    """Make the weights, load them on all lanes at once, and compile what calibration would wait for.

    The draft first, whose weights take most before they are rounded. Then the target is compiled for the exit that
    decoding reads, before any other is timed: so each layer is compiled once.
    """
    session.say("making, loading and compiling the models")
    task = _task(session, engine)

    def measure(lane: PlacedLane, timed: Iterable[Measurement]) -> None:
        for one in timed:
            engine.lane(lane.name).request(MeasureRole.measure, replace(one, repeats=1, warm_up=0)).result()

    def ready(lane: PlacedLane) -> None:
        engine.load_target(lane.name)
        engine.load_draft(lane.name)
        timed = list(LaneParts(task, lane).measurements())
        of_draft = [one for one in timed if one.part.startswith("draft")]
        measure(lane, of_draft)
        engine.compile_target(lane.name, task.decoded_exit(lane.name), drafters=())
        measure(lane, [one for one in timed if one not in of_draft])

    with ThreadPoolExecutor() as pool:
        list(pool.map(ready, task.lanes))


def run_and_write(session: Session, engine: ReplayEngine, plan: Plan, schedules: Sequence[Schedule]) -> None:
    """Run the schedules on one prompt after the other, and write the result after each."""
    candidates = {one.schedule: one for one in rank(schedules, plan.profile, plan.record).candidates}
    rows: list[list[Run]] = [[] for _ in schedules]
    for place, prompt in enumerate(engine.prompts):
        order = [*schedules[place % len(schedules) :], *schedules[: place % len(schedules)]]
        made = run_in_turn(
            engine,
            order,
            [prompt],
            anchors_of(engine, plan.profile),
            cuts=[session.options.tokens],
            progress=lambda step, _share: session.say(f"prompt {place + 1}, {step}"),  # noqa: B023
        )
        by_schedule = dict(zip(order, made.runs, strict=True))
        for schedule, row in zip(schedules, rows, strict=True):
            row.extend(by_schedule[schedule])
        measured = Measured(runs=tuple(map(tuple, rows)))
        judged = judge_runs([candidates[schedule] for schedule in schedules], measured, plan.profile, plan.record)
        content = result(session, plan, judged)
        write_result(session.options.out, content)
        session.say(f"{measured.num_prompts} prompts: {content['accuracy']}")


def result(session: Session, plan: Plan, judged: JudgedRuns) -> dict[str, Any]:
    """The content of the result file."""
    options, profile, used = session.options, plan.profile, session.others.so_far()
    labels = {run.trace.label for row in judged.measured.runs for run in row}
    return {
        "label": f"{', '.join(sorted(labels))}. {in_words(plan.record)}",
        "platform": platform_entry(profile.host, session.pair) | {"drafter": options.draft},
        "measured": measured_pair(session.pair),
        "formats": formats(),
        "settings": {
            name: getattr(options, name) for name in ("target", "draft", "form", "tokens", "prompts", "minutes")
        }
        | {"lanes": [lane.name for lane in session.lanes], "prompt_length": _PROMPT_LENGTH},
        "num_prompts": judged.measured.num_prompts,
        "num_runs": sum(map(len, judged.measured.runs)),
        "busy": None if used is None else used.share,
        "accuracy": accuracy(judged),
        "pays": judged.verdict.pays,
        "speedup": ratio_entry(judged.verdict.speedup),
        "verdict_measured": judged.verdict.text,
        "verdict_predicted": plan.verdict.text,
        "notes": [*disturbed_runs(judged), *changed_slowdowns(judged, profile), *profile.notes],
        "schedules": [
            entry | {"runs": [_raw(run) for run in runs]}
            for entry, runs in zip(schedule_entries(judged), judged.measured.runs, strict=True)
        ],
    }


def _raw(run: Run) -> dict[str, Any]:
    """All that was timed of a run, in seconds."""
    return {
        "decode_s": round(run.trace.decode_s, _DIGITS),
        "prefill_s": round(run.trace.prefill_s, _DIGITS),
        "committed": " ".join(str(entry.num_committed) for entry in run.trace.rounds),
        "anchors_alone_s": {lane: _in_a_line(taken) for lane, taken in run.anchors.alone.items()},
        "anchors_at_once_s": [_in_a_line(pair) for pair in run.anchors.shared],
    }


def _in_a_line(seconds: Sequence[float]) -> str:
    return " ".join(f"{one:.{_DIGITS}f}" for one in seconds)


def _task(session: Session, engine: ReplayEngine) -> CalibrationTask:
    contexts = (_PROMPT_LENGTH - 1, _PROMPT_LENGTH + session.options.tokens)
    return calibration_task(
        engine,
        session.pair,
        session.lanes,
        contexts=contexts,
        max_window=max(WINDOWS),
        max_branches=_NUM_BRANCHES,
        quick=True,
        time_s=60 * session.options.minutes,
    )


if __name__ == "__main__":
    main()
