"""Acceptance of the shipped drafter, measured in the engine at temperature 0: prompts through real lanes.

    python benchmarks/acceptance.py                                   the shipped prompts
    python benchmarks/acceptance.py --prompts question.jsonl          Spec-Bench's questions, first turns

Writes benchmarks/results/acceptance-NAME.json, where NAME is `shipped` or the file's stem, and puts the means on
the drafter's card with --card.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.prompts import Prompt, bundled_prompts, load_prompts
from decoding import metrics
from decoding.schedule import Schedule
from decoding.trace import Trace
from decoding.yaml_file import write_atomically
from hwprofiles.host import describe_host, local_lanes
from mirrorsd.pair import find_pair
from mirrorsd.text_engine import Decoding, TextEngine, lane_specs
from training.card import add_benchmark

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure every setting on every prompt and write the result file."""
    options = _options()
    prompts = bundled_prompts() if options.prompts is None else load_prompts(options.prompts)
    prompts = prompts[:: options.every]
    name = "shipped" if options.prompts is None else options.prompts.stem
    pair = find_pair("smollm2-135m-instruct", dtype=options.dtype)
    lane = options.lane or local_lanes()[0].name
    decoding = Decoding(max_new_tokens=options.max_new_tokens)
    settings: dict[str, Any] = {}
    with TextEngine(pair, lane_specs()) as engine:
        for num_tokens in options.windows:
            for with_features in (False, True):
                schedule = Schedule(
                    method="speculative",
                    target_lane=lane,
                    draft_lane=lane,
                    num_speculative_tokens=num_tokens,
                    exit_features=with_features,
                    drafter=pair.drafter,
                )
                label = f"{num_tokens} drafted tokens, {'with' if with_features else 'without'} exit features"
                traces = _measure(engine, prompts, schedule, decoding, label)
                settings[label] = _figures(traces)
                print(f"{label}: mean_acceptance_length {settings[label]['mean_acceptance_length']:.3f}", flush=True)
    result = {
        "prompts": name,
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "dtype": options.dtype,
        "target": pair.target,
        "drafter": pair.drafter,
        "platform": describe_host(),
        "settings": settings,
    }
    path = RESULTS / f"acceptance-{name}.json"
    write_atomically(path, json.dumps(result, indent=2, default=str) + "\n")
    print(path)
    if options.card and pair.drafter_folder is not None:
        means = {label: round(figures["mean_acceptance_length"], 3) for label, figures in settings.items()}
        add_benchmark(pair.drafter_folder, f"mean_acceptance_length on {name}", means)


def _measure(
    engine: TextEngine, prompts: Sequence[Prompt], schedule: Schedule, decoding: Decoding, label: str
) -> dict[str, list[Trace]]:
    """Traces by category."""
    traces = defaultdict(list)
    for index, prompt in enumerate(prompts, 1):
        traces[prompt.category].append(engine.answer(prompt, schedule, decoding).trace)
        print(f"\r{label}: {index}/{len(prompts)}", end="", flush=True)
    print("\r", end="")
    return traces


def _figures(by_category: dict[str, list[Trace]]) -> dict[str, Any]:
    everything = [trace for traces in by_category.values() for trace in traces]
    return {
        "mean_acceptance_length": metrics.mean_acceptance_length(everything),
        "mean_acceptance_length_per_request": metrics.mean_acceptance_length_per_request(everything),
        "conditional_acceptance_rate": metrics.conditional_acceptance_rate(everything),
        "num_rounds": metrics.num_rounds(everything),
        "by_category": {name: metrics.mean_acceptance_length(traces) for name, traces in by_category.items()},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl, or rows with a prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--windows", type=int, nargs="+", default=[4, 5])
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--lane", help="where to run; acceptance does not depend on it")
    parser.add_argument("--card", action="store_true", help="put the means on the drafter's card")
    return parser.parse_args()


if __name__ == "__main__":
    main()
