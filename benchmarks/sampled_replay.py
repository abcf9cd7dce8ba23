"""Whether replays of sampled texts are distributed as real runs of the default model are: in mean and in spread.

    python benchmarks/sampled_replay.py                      1,000 real runs of every schedule, 25 minutes

Texts are sampled at a temperature by plain decoding and recorded; a replay draws which of their drafted tokens the
ratio rule would have kept. Real runs draft and verify, with seeds of their own. Compared is what a text of either kind
has: tokens per round, and hits among its rounds. Acceptance does not depend on time: it may run next to other work.
Writes benchmarks/results/sampled-replay.json; goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from _common import EMBEDDED, RESULTS, arguments, facts, show, write_result

from calibrate.prompts import EncodedPrompt, bundled_prompts
from calibrate.recording.reach import Reach
from decoding.record import round_starts
from decoding.schedule import Schedule
from decoding.trace import Trace
from mirrorsd.lane_choice import chosen_lanes
from mirrorsd.measure_pair import record
from mirrorsd.model_pair import find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from runtime.engine import Engine
from sim.acceptance.branch_hits import MISS
from sim.acceptance.replay import Outcomes, Replay

RESULT = RESULTS / "sampled-replay.json"
_RECORDED_SEED: Final = 100_000
_WINDOW: Final = {"num_speculative_tokens": 4, "verification": "ratio"}
SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "speculative": {"method": "speculative", **_WINDOW},
    "mirror from the exit": {"method": "mirror", "root_source": "exit", "exit_layer": 15, "exit_top_k": 3, **_WINDOW},
}


def main() -> None:
    """Record, run, compare, and write the result file after every schedule."""
    options = arguments(
        __doc__,
        out=RESULT,
        prompts=4,
        runs=(250, "of every prompt"),
        tokens=24,
        temperature=1.0,
        record=Path(tempfile.gettempdir()) / "mirrorsd-sampled.npz",
    ).parse_args()
    pair = find_pair(EMBEDDED, dtype="bfloat16", heads=())
    prompts = bundled_prompts()[:: max(1, len(bundled_prompts()) // options.prompts)][: options.prompts]
    lanes = [lane for lane in chosen_lanes(None, None, pair) if lane.num_threads == 1][:2]
    reach = Reach(
        max_new_tokens=options.tokens,
        max_window=4,
        exit_layers=(15,),
        trees=(),
        temperature=options.temperature,
        num_texts=options.runs,
        seed=_RECORDED_SEED,
    )
    content: dict[str, Any] = {
        **facts(pair, with_formats=True),
        "prompts": [prompt.prompt_id for prompt in prompts],
        "runs_of_each_prompt": options.runs,
        "max_new_tokens": options.tokens,
        "temperature": options.temperature,
        "schedules": {},
    }
    texts = record(pair, prompts, options.record, reach=reach, progress=show)
    replay = Replay(texts)
    with new_engine(pair, lanes) as engine:
        for name, fields in SCHEDULES.items():
            schedule = Schedule(**fields, target_lane=lanes[0].name, draft_lane=lanes[1].name)
            replayed = [of_outcomes(replay.outcomes(schedule, None), prompt) for prompt in range(len(texts.prompts))]
            real = list(_real(engine, schedule, encode(prompts, pair.target_folder), options))
            content["schedules"][name] = {
                "schedule": schedule.model_dump(mode="json", exclude_defaults=True),
                "tokens_per_round": compared(*([one[0] for one in side] for side in (real, replayed))),
                "hits_per_round": compared(*([one[1] for one in side] for side in (real, replayed))),
            }
            print(name, content["schedules"][name], flush=True)
            write_result(options.out, content)


def compared(real: Sequence[float], replayed: Sequence[float]) -> dict[str, float]:
    """Means and standard deviations of two samples, and how many standard errors either differs by."""
    means, spreads = (fmean(real), fmean(replayed)), (stdev(real), stdev(replayed))
    error = hypot(*(spread / sqrt(len(side)) for spread, side in zip(spreads, (real, replayed), strict=True)))
    spread_error = hypot(*(_spread_error(side) for side in (real, replayed)))
    return {
        "mean_real": means[0],
        "mean_replayed": means[1],
        "mean_differs_by": (means[1] - means[0]) / error if error else 0.0,
        "spread_real": spreads[0],
        "spread_replayed": spreads[1],
        "spread_differs_by": (spreads[1] - spreads[0]) / spread_error if spread_error else 0.0,
        "num_real": len(real),
        "num_replayed": len(replayed),
    }


def _spread_error(values: Sequence[float]) -> float:
    """Standard error of a standard deviation, whatever the distribution: by its fourth moment."""
    mean, spread = fmean(values), stdev(values)
    fourth = fmean((one - mean) ** 4 for one in values)
    return sqrt(max(0.0, fourth - spread**4) / len(values)) / (2 * spread) if spread else 0.0


def of_outcomes(outcomes: Outcomes, prompt: int) -> tuple[float, float]:
    """Tokens per round of a replayed text, and the share of its rounds that are followed by a hit."""
    start, length = outcomes.starts[prompt], outcomes.lengths[prompt]
    starts = round_starts(outcomes.num_accepted[start : start + length], length)
    hits = sum(outcomes.branches[start + place] != MISS for place in starts[:-1])
    return length / len(starts), hits / len(starts)


def of_trace(trace: Trace) -> tuple[float, float]:
    """The same of a real one."""
    rounds = len(trace.rounds)
    return sum(one.num_committed for one in trace.rounds) / rounds, sum(bool(one.hit) for one in trace.rounds) / rounds


def _real(
    engine: Engine, schedule: Schedule, prompts: Sequence[EncodedPrompt], options: argparse.Namespace
) -> Iterator[tuple[float, float]]:
    for prompt in prompts:
        for seed in range(options.runs):
            made = engine.generate(
                schedule, prompt.ids, max_new_tokens=options.tokens, temperature=options.temperature, seed=seed
            )
            yield of_trace(made.trace)
        print(f"{schedule.method}: {prompt.name} has {options.runs} runs", flush=True)


if __name__ == "__main__":
    main()
