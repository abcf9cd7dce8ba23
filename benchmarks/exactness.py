"""Exactness on the embedded model in float32 at temperature 0: every method's text, and every simulated round.

    python benchmarks/exactness.py

Decodes the shipped prompts by plain decoding, by every method and root source, and by the trees of every shipped
head, compares the texts token by token, and compares the real rounds with those that a replay of the acceptance
record predicts. Writes benchmarks/results/exactness.json. Nothing here depends on time, but on a machine so busy that
a draft lane is given up (`num_lost_drafts`): from there on the target is alone, and rounds differ.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from _common import EMBEDDED, RESULTS, arguments, write_result

from calibrate.prompts import bundled_prompts
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.host import describe_host
from hwprofiles.profile import load_profile
from mirrorsd.model_pair import find_pair, name_of
from mirrorsd.record_pair import Reach, record
from mirrorsd.text_engine import Decoding, TextEngine, lane_specs
from sim.cost.cost_model import ConstantCost, PartKind
from sim.world import simulate

RESULT = RESULTS / "exactness.json"
PLACE: dict[str, Any] = {"target_lane": "cpu0", "draft_lane": "cpu1"}
TREE_SIZE = 16
EXIT: dict[str, Any] = {"method": "mirror", "root_source": "exit", "exit_top_k": 4}
SCHEDULES: dict[str, dict[str, Any]] = {
    "speculative": {"method": "speculative", "num_speculative_tokens": 4},
    "speculative, exit features": {"method": "speculative", "num_speculative_tokens": 4, "exit_features": True},
    "mirror, exit": EXIT | {"num_speculative_tokens": 3, "exit_layer": 15},
    "mirror, exit with features": EXIT | {"num_speculative_tokens": 3, "exit_layer": 20, "exit_features": True},
    "mirror, draft": {"method": "mirror", "root_source": "draft", "draft_top_k": 4, "num_speculative_tokens": 3},
    "mirror, hybrid": EXIT | {"root_source": "hybrid", "draft_top_k": 2, "num_speculative_tokens": 3, "exit_layer": 15},
}


def main() -> None:
    """Run, compare, write the result file."""
    options = _options()
    prompts = bundled_prompts()[: options.limit]
    pair = find_pair(EMBEDDED, dtype="float32")
    decoding = Decoding(max_new_tokens=options.max_new_tokens)
    with tempfile.TemporaryDirectory() as folder:
        reach = Reach(max_new_tokens=options.max_new_tokens, max_window=4)
        accepted = record(pair, prompts, Path(folder) / "record.npz", reach=reach, num_threads=1)
    profile = load_profile(options.profile)
    # rounds do not depend on times, so the profile may be older than the heads
    cost = ConstantCost(seconds_by_kind=dict.fromkeys(get_args(PartKind), 1e-3))
    costs = {lane.name: cost for lane in profile.lanes}
    chains = [(name, Schedule(**fields, **PLACE, drafter=name_of(pair.drafter))) for name, fields in SCHEDULES.items()]
    results: dict[str, Any] = {}
    with TextEngine(pair, lane_specs(profile)) as engine:
        plain = Schedule(method="autoregressive", target_lane="cpu0")
        texts = [engine.answer(prompt, plain, decoding).tokens for prompt in prompts]
        recorded = [tuple(entry.text.tolist()) for entry in accepted.prompts]
        results["autoregressive"] = {"texts_equal_to_record": sum(map(tuple.__eq__, texts, recorded))}
        for name, schedule in [*chains, *_trees(accepted)]:
            answers = [engine.answer(prompt, schedule, decoding) for prompt in prompts]
            simulated = simulate(schedule, profile, accepted, costs=costs)
            pairs = zip(simulated, [answer.trace for answer in answers], strict=True)
            results[name] = {
                "texts_equal": sum(answer.tokens == text for answer, text in zip(answers, texts, strict=True)),
                "prompts_with_equal_rounds": sum(_rounds(one) == _rounds(other) for one, other in pairs),
                "num_rounds": sum(len(answer.trace.rounds) for answer in answers),
                "num_lost_drafts": sum(len(answer.trace.events) for answer in answers),
            }
            print(f"{name}: {results[name]} of {len(prompts)}", flush=True)
            _write(results, len(prompts), options.max_new_tokens)


def _write(results: dict[str, Any], num_prompts: int, max_new_tokens: int) -> None:
    """The result file as far as it has come: the last schedules are long in coming."""
    content = {
        "num_prompts": num_prompts,
        "max_new_tokens": max_new_tokens,
        "dtype": "float32",
        "platform": describe_host(),
        "schedules": results,
    }
    write_result(RESULT, content)


def _trees(accepted: AcceptanceRecord) -> Iterator[tuple[str, Schedule]]:
    """A tree of every kind that was recorded."""
    for tree in accepted.trees:
        place = {"target_lane": "cpu0"} if tree.method == "speculative_streaming" else PLACE
        expanded = f", top {tree.top_k}" if tree.top_k else ""
        yield (
            f"{tree.method}, tree of {TREE_SIZE}, {tree.depth} deep{expanded}",
            Schedule(
                method=tree.method,
                num_speculative_tokens=tree.depth,
                tree_size=TREE_SIZE,
                tree_top_k=tree.top_k,
                drafter=tree.drafter,
                **place,
            ),
        )


def _rounds(trace: Trace) -> list[tuple[Any, ...]]:
    """All fields of a round but its times."""
    return [entry[2:] for entry in trace.rounds]


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--profile", type=Path, default=Path("out/demo/profile.yaml"), help="of this machine")
    parser.add_argument("--limit", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    return parser.parse_args()


if __name__ == "__main__":
    main()
