"""Acceptance of the shipped drafters, measured in the engine at temperature 0: prompts through real lanes.

    python benchmarks/acceptance.py                                   the shipped prompts, every drafter
    python benchmarks/acceptance.py --prompts question.jsonl          Spec-Bench's questions, first turns
    python benchmarks/acceptance.py --drafters smollm2-135m-eagle3    one drafter; what is known of others is kept

Writes benchmarks/results/acceptance-NAME.json, where NAME is `shipped` or the file's stem, and puts the means on
the drafters' cards with --card. Acceptance does not depend on time: it may run beside other work.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calibrate.prompts import Prompt, bundled_prompts, load_prompts
from decoding import metrics
from decoding.schedule import Method, Schedule
from decoding.trace import Trace
from decoding.yaml_file import write_atomically
from hwprofiles.host import describe_host, local_lanes
from mirrorsd.pair import find_pair
from mirrorsd.text_engine import Decoding, TextEngine, lane_specs
from runtime.shipped import find_drafter
from training.card import add_benchmark

RESULTS = Path(__file__).parent / "results"
METHODS: dict[str, Method] = {
    "mirrorsd_draft": "speculative",
    "mirrorsd_medusa": "medusa",
    "mirrorsd_hydra": "hydra",
    "mirrorsd_eagle1": "eagle2",
    "mirrorsd_eagle3": "eagle3",
    "mirrorsd_streams": "speculative_streaming",
}
WINDOWS = (4, 5)
DYNAMIC_TREE: dict[str, Any] = {"num_speculative_tokens": 6, "tree_top_k": 10, "tree_size": 60}
STATIC_TREE_SIZE = 63


def main() -> None:
    """Measure every setting on every prompt and write the result file after each drafter."""
    options = _options()
    prompts = bundled_prompts() if options.prompts is None else load_prompts(options.prompts)
    prompts = prompts[:: options.every]
    name = "shipped" if options.prompts is None else options.prompts.stem
    pair = find_pair("smollm2-135m-instruct", dtype=options.dtype)
    drafters = options.drafters or [*filter(None, (pair.drafter,)), *pair.heads]
    lane = options.lane or local_lanes()[0].name
    decoding = Decoding(max_new_tokens=options.max_new_tokens)
    shared = {
        "prompts": name,
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "dtype": options.dtype,
        "target": pair.target,
        "platform": describe_host(),
    }
    path = RESULTS / f"acceptance-{name}.json"
    with TextEngine(pair, lane_specs()) as engine:
        for drafter in drafters:
            settings = {}
            for label, fields in _settings(find_drafter(drafter)):
                place = {"target_lane": lane} | ({} if "alone" in fields else {"draft_lane": lane})
                fields.pop("alone", None)
                schedule = Schedule(drafter=drafter, **place, **fields)
                settings[label] = _figures(_measure(engine, prompts, schedule, decoding, f"{drafter}, {label}"))
                print(f"{drafter}, {label}: {settings[label]['mean_acceptance_length']:.3f}", flush=True)
            _keep(path, shared, drafter, settings)
            if options.card:
                means = {label: round(figures["mean_acceptance_length"], 3) for label, figures in settings.items()}
                add_benchmark(find_drafter(drafter), f"mean_acceptance_length on {name}", means)
    print(path.name)


def _settings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Labels, and fields of a schedule, for the drafter in a folder."""
    config = json.loads((folder / "config.json").read_bytes())
    method = METHODS[config["speculators_model_type"]]
    if method == "speculative":
        for num_tokens in WINDOWS:
            for with_features in (False, True) if config["exit_features"] else (False,):
                label = f"{num_tokens} drafted tokens, {'with' if with_features else 'without'} exit features"
                chain = {"method": method, "num_speculative_tokens": num_tokens, "exit_features": with_features}
                yield label, chain
    elif "paths" in config:
        depth, size = max(map(len, config["paths"])), min(STATIC_TREE_SIZE, len(config["paths"]))
        alone = {"alone": True} if method == "speculative_streaming" else {}
        tree = {"method": method, "num_speculative_tokens": depth, "tree_size": size}
        yield f"tree of {size} nodes, {depth} deep", tree | alone
    else:
        size, depth = DYNAMIC_TREE["tree_size"], DYNAMIC_TREE["num_speculative_tokens"]
        yield f"tree of {size} nodes, {depth} deep", {"method": method} | DYNAMIC_TREE


def _keep(path: Path, shared: dict[str, Any], drafter: str, settings: dict[str, Any]) -> None:
    """Put one drafter's figures into the result file; figures of other prompts or lengths give way."""
    earlier = json.loads(path.read_bytes()) if path.is_file() else {}
    same = all(earlier.get(key) == shared[key] for key in ("num_prompts", "max_new_tokens", "dtype", "target"))
    drafters = earlier.get("drafters", {}) if same else {}
    content = shared | {"drafters": drafters | {drafter: settings}}
    write_atomically(path, json.dumps(content, indent=2, default=str) + "\n")


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
        "conditional_acceptance_rate": [
            rate for rate in metrics.conditional_acceptance_rate(everything) if not math.isnan(rate)
        ],
        "num_rounds": metrics.num_rounds(everything),
        "by_category": {name: metrics.mean_acceptance_length(traces) for name, traces in by_category.items()},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl, or rows with a prompt")
    parser.add_argument("--drafters", nargs="+", help="names or folders; all that ship if none is given")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--lane", help="where to run; acceptance does not depend on it")
    parser.add_argument("--card", action="store_true", help="put the means on the drafters' cards")
    return parser.parse_args()


if __name__ == "__main__":
    main()
