"""Exactness on the embedded model at temperature 0: every method's text, and every simulated round, in both dtypes.

    python benchmarks/exactness.py

Decodes the shipped prompts by plain decoding, by every method and root source whose windows are chains, and by the
trees of every shipped head, compares the texts token by token, and compares the real rounds with those that a replay
of the acceptance record predicts. Chains have to agree in all of them; trees cannot to the last bit
(`runtime.models.masks.TreeRows`) and are counted. Chains whose draft has a lane of its own are decoded once more, and
every time that lane is killed at random (`killed`): the target has to end the text alone, as it was. Writes
benchmarks/results/exactness.json after every schedule, and an interrupted run goes on after the last one. Nothing here
depends on time: a lane is waited for as long as it takes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from _common import EMBEDDED, RESULTS, arguments, measured_pair, read_result, write_result

from calibrate.prompts import Prompt, bundled_prompts
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.host import describe_host
from hwprofiles.profile import Profile, load_profile
from mirrorsd.lane_choice import profile_lanes
from mirrorsd.model_pair import ModelPair, find_pair, folder_of, name_of
from mirrorsd.prompt_tokens import encode
from mirrorsd.record_pair import Reach, record
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener
from sim.cost.cost_model import ConstantCost, PartKind
from sim.world import simulate

RESULT = RESULTS / "exactness.json"
DTYPES: tuple[Literal["bfloat16", "float32"], ...] = ("bfloat16", "float32")
PLACE: dict[str, Any] = {"target_lane": "cpu0", "draft_lane": "cpu1"}
PATIENCE_S = 3600.0
"""For a lane to answer: one that others leave no time is waited for, and one that is killed is noticed at once."""
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
        "measured": measured_pair(pairs[DTYPES[0]]),
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


def can_lose_its_draft(schedule: Schedule) -> bool:
    """Whether a draft has a lane of its own, and the text has to stay as it is without it: a tree's need not."""
    return schedule.draft_lane is not None and not schedule.is_pooled and not schedule.is_tree


class Killed(NamedTuple):
    """What came of a schedule's prompts, the draft's lane being killed in every one of them.

    Attributes:
        texts_equal: texts that are those of plain decoding all the same.
        num_lost_drafts: prompts, as their traces say, that the target ended alone.
    """

    texts_equal: int
    num_lost_drafts: int


def with_kills(
    engine: Engine,
    schedule: Schedule,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[tuple[int, ...]],
    moments: random.Random,
) -> Killed:
    """Decode every prompt and kill the draft's lane meanwhile, once, after a random number of committed tokens.

    Args:
        engine: its lanes; it starts the lost one again for the next prompt.
        schedule: with a draft in a lane of its own.
        prompts: token ids.
        texts: of plain decoding.
        moments: what the numbers of tokens, from 1 to all of a text, are drawn from.
    """
    texts_equal = num_lost_drafts = 0
    for prompt, text in zip(prompts, texts, strict=True):
        kill = _Kill(engine, schedule, after=moments.randint(1, len(text)))
        made = engine.generate(schedule, prompt, max_new_tokens=len(text), listener=Listener(on_tokens=kill))
        texts_equal += made.tokens == text
        num_lost_drafts += len(made.trace.events)
    return Killed(texts_equal=texts_equal, num_lost_drafts=num_lost_drafts)


class _Kill:
    """Ends the process of the draft's lane once so many tokens are committed."""

    def __init__(self, engine: Engine, schedule: Schedule, *, after: int) -> None:
        assert schedule.draft_lane is not None, "a draft's lane"
        self._lane, self._left = engine.lane(schedule.draft_lane), after

    def __call__(self, tokens: tuple[int, ...]) -> None:
        is_time = 0 < self._left <= len(tokens)
        self._left -= len(tokens)
        if is_time and (process := self._lane.process_id) is not None:
            os.kill(process, signal.SIGKILL)


class _Run:
    """All schedules in one dtype."""

    def __init__(
        self, pair: ModelPair, prompts: Sequence[Prompt], profile: Profile, max_new_tokens: int, records: Path
    ) -> None:
        self._pair, self._profile = pair, profile
        self._prompts = [prompt.ids for prompt in encode(prompts, pair.target_folder)]
        self._record = _recorded(pair, prompts, max_new_tokens, records)
        self._texts = [tuple(entry.text.tolist()) for entry in self._record.prompts]
        # rounds do not depend on times, so the profile may be older than the heads
        cost = ConstantCost(seconds_by_kind=dict.fromkeys(get_args(PartKind), 1e-3))
        self._costs = {lane.name: cost for lane in profile.lanes}

    def results(self, *, done: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What came of every schedule that is not done yet, one after the other."""
        todo = [(name, schedule) for name, schedule in self._schedules() if name not in done]
        with self._engine() as engine:
            for name, schedule in todo:
                yield name, self._compare(engine, schedule) | self._killed(engine, schedule)

    def _engine(self) -> Engine:
        return Engine(
            self._pair.target_folder,
            lanes=profile_lanes(self._profile),
            drafter_folder=folder_of(self._pair.drafter),
            exits_folder=folder_of(self._pair.exits),
            dtype=self._pair.dtype,
            draft_deadline_s=PATIENCE_S,
            target_deadline_s=PATIENCE_S,
        )

    def _compare(self, engine: Engine, schedule: Schedule) -> dict[str, Any]:
        length = self._record.max_new_tokens
        made = [engine.generate(schedule, prompt, max_new_tokens=length) for prompt in self._prompts]
        simulated = simulate(schedule, self._profile, self._record, costs=self._costs)
        both = zip(simulated, [one.trace for one in made], strict=True)
        return {
            "texts_equal": sum(one.tokens == text for one, text in zip(made, self._texts, strict=True)),
            "prompts_with_equal_rounds": sum(_rounds(one) == _rounds(other) for one, other in both),
            "num_rounds": sum(len(one.trace.rounds) for one in made),
            "num_lost_drafts": sum(len(one.trace.events) for one in made),
        }

    def _killed(self, engine: Engine, schedule: Schedule) -> dict[str, Any]:
        if not can_lose_its_draft(schedule):
            return {}
        killed = with_kills(engine, schedule, self._prompts, self._texts, random.Random(0))
        return {"killed": killed._asdict()}

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
    asked = [measured_pair(pair), [prompt.prompt_id for prompt in prompts], max_new_tokens, pair.dtype]
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
