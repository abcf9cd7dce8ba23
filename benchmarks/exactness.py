"""Exactness on the embedded model at temperature 0: every method's text, and every simulated round, in both dtypes.

    python benchmarks/exactness.py

Decodes the shipped prompts by plain decoding, by every method and root source whose windows are chains, and by the
trees of every shipped head, compares the texts token by token, and compares the real rounds with those that a replay
of the acceptance record predicts. Chains have to agree in all of them; trees cannot to the last bit
(`runtime.models.masks.TreeRows`) and are counted. Writes benchmarks/results/exactness.json after every schedule, and
an interrupted run goes on after the last one: about half an hour on two quiet cores. Nothing here depends on time, but
on a machine so busy that a draft lane is given up (`num_lost_drafts`): from there on the target is alone, and rounds
differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from _common import EMBEDDED, RESULTS, arguments, read_result, write_result

from calibrate.prompts import Prompt, bundled_prompts
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.host import describe_host
from hwprofiles.profile import Profile, load_profile
from mirrorsd.lane_choice import profile_lanes
from mirrorsd.model_pair import ModelPair, find_pair, name_of
from mirrorsd.record_pair import Reach, record
from mirrorsd.text_engine import Decoding, TextEngine
from sim.cost.cost_model import ConstantCost, PartKind
from sim.world import simulate

RESULT = RESULTS / "exactness.json"
DTYPES: tuple[Literal["bfloat16", "float32"], ...] = ("bfloat16", "float32")
PLACE: dict[str, Any] = {"target_lane": "cpu0", "draft_lane": "cpu1"}
TREE_SIZE = 16
DYNAMIC_TREES = ((5, 8),)
MAX_WINDOW = 4
EXIT: dict[str, Any] = {"method": "mirror", "root_source": "exit", "exit_top_k": 4}
CHAINS: dict[str, dict[str, Any]] = {
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
    pairs = {dtype: find_pair(EMBEDDED, dtype=dtype) for dtype in DTYPES}
    content: dict[str, Any] = {
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "platform": describe_host(),
        "measured": measured(pairs[DTYPES[0]]),
        "dtypes": {},
    }
    if options.out.exists() and _is_of_the_same(before := read_result(options.out), content):
        content = before
    for dtype, pair in pairs.items():
        run = _Run(pair, prompts, load_profile(options.profile), options.max_new_tokens, options.records)
        results = content["dtypes"].setdefault(dtype, {})
        for name, result in run.results(done=results):
            results[name] = result
            print(f"{dtype}, {name}: {result} of {len(prompts)}", flush=True)
            write_result(options.out, content)


def measured(pair: ModelPair) -> dict[str, str]:
    """SHA-256 of every file of weights behind the numbers, by model and file."""
    named = [(pair.target, pair.target_folder)]
    named += [(one.name, one.folder) for one in (pair.drafter, pair.exits, *pair.heads) if one is not None]
    files = [(f"{name}/{file.name}", file) for name, folder in named for file in sorted(folder.glob("*.safetensors"))]
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files}


class _Run:
    """All schedules in one dtype."""

    def __init__(
        self, pair: ModelPair, prompts: Sequence[Prompt], profile: Profile, max_new_tokens: int, records: Path
    ) -> None:
        self._pair, self._prompts, self._profile = pair, prompts, profile
        self._decoding = Decoding(max_new_tokens=max_new_tokens)
        self._record = _recorded(pair, prompts, max_new_tokens, records)
        # rounds do not depend on times, so the profile may be older than the heads
        cost = ConstantCost(seconds_by_kind=dict.fromkeys(get_args(PartKind), 1e-3))
        self._costs = {lane.name: cost for lane in profile.lanes}

    def results(self, *, done: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What came of every schedule that is not done yet, one after the other."""
        todo = [(name, schedule) for name, schedule in self._schedules() if name not in done]
        with TextEngine(self._pair, profile_lanes(self._profile)) as engine:
            for name, schedule in todo:
                yield name, self._compare(engine, schedule)

    def _compare(self, engine: TextEngine, schedule: Schedule) -> dict[str, Any]:
        answers = [engine.answer(prompt, schedule, self._decoding) for prompt in self._prompts]
        simulated = simulate(schedule, self._profile, self._record, costs=self._costs)
        texts = [tuple(entry.text.tolist()) for entry in self._record.prompts]
        both = zip(simulated, [answer.trace for answer in answers], strict=True)
        return {
            "texts_equal": sum(tuple(answer.tokens) == text for answer, text in zip(answers, texts, strict=True)),
            "prompts_with_equal_rounds": sum(_rounds(one) == _rounds(other) for one, other in both),
            "num_rounds": sum(len(answer.trace.rounds) for answer in answers),
            "num_lost_drafts": sum(len(answer.trace.events) for answer in answers),
        }

    def _schedules(self) -> Iterator[tuple[str, Schedule]]:
        """Plain decoding, all chains, and a tree of every kind that was recorded."""
        drafter = name_of(self._pair.drafter)
        yield "autoregressive", Schedule(method="autoregressive", target_lane="cpu0")
        for name, fields in CHAINS.items():
            yield name, Schedule(**fields, **PLACE, drafter=drafter)
        if count := self._record.num_streams:
            fields = {"method": "speculative", "num_speculative_tokens": MAX_WINDOW, "draft_streams": count}
            yield f"speculative, {count} draft streams", Schedule(**fields, **PLACE, drafter=drafter)
        for chain in self._record.chains:
            fields = {"method": chain.method, "num_speculative_tokens": MAX_WINDOW}
            yield chain.method, Schedule(**fields, **PLACE, drafter=chain.drafter)
        for tree in self._record.trees:
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


def _recorded(pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int, folder: Path) -> AcceptanceRecord:
    """The record of these models and prompts, made at the first run."""
    reach = Reach(max_new_tokens=max_new_tokens, max_window=MAX_WINDOW, trees=DYNAMIC_TREES)
    asked = [measured(pair), [prompt.prompt_id for prompt in prompts], max_new_tokens, pair.dtype]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    path = folder / f"{pair.dtype}-{name}.npz"
    if path.exists():
        return AcceptanceRecord.load(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return record(pair, prompts, path, reach=reach, num_threads=1)


def _is_of_the_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both results are of the same prompts, lengths and weights, on the same platform."""
    return all(one.get(key) == value for key, value in json.loads(json.dumps(other, default=str)).items() if value)


def _rounds(trace: Trace) -> list[tuple[Any, ...]]:
    """All fields of a round but its times."""
    return [entry[2:] for entry in trace.rounds]


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--profile", type=Path, default=Path("out/demo/profile.yaml"), help="of this machine")
    parser.add_argument("--records", type=Path, default=Path("out/exactness"), help="folder of the records made")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    return parser.parse_args()


if __name__ == "__main__":
    main()
