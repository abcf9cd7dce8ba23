"""Exactness on the default model at temperature 0: every method's text and every simulated round, on both back ends.

    python benchmarks/exactness.py
    python benchmarks/exactness.py --prompts DATA/spec_bench_dev.jsonl --lanes graphs --out out/held-out.json

Decodes prompts, half of them of more than 256 tokens, by plain decoding, by every method and root source whose windows
are chains, and by the trees of every shipped head, on lanes of torch and on those of graphs, in every form of weights
that they have, each schedule in another order of prompts. Texts are compared token by token with plain decoding on the
same lane, and real rounds with those that a replay of the acceptance record predicts. Chains have to agree in all of
them; trees cannot to the last bit (`runtime.backends.backend.TreeRows`) and are counted. Chains whose draft has a lane
of its own are decoded once more, and every time that lane is killed at random (`killed`): the target has to end the
text alone, as it was. Writes the result after every schedule; an interrupted run goes on after the last one. Nothing
here depends on time: a lane is waited for as long as it takes.
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
from typing import Any, NamedTuple, get_args

from _common import EMBEDDED, RESULTS, arguments, measured_pair, read_result, write_result

from calibrate.prompts import Prompt, bundled_prompts, load_prompts
from calibrate.recording.reach import Reach
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.host import describe_host
from hwprofiles.profile import load_profile
from mirrorsd.lane_choice import device_lanes
from mirrorsd.measure_pair import record
from mirrorsd.model_pair import ModelPair, find_pair, name_of
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from runtime.backends.lane_device import Dtype
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener
from sim.world import simulate
from tests.costs.constant_cost import MILLISECONDS

RESULT = RESULTS / "exactness.json"
LONG = 256
"""Tokens of a prompt that is long: the first buffers of graphs have so many slots."""
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


class Lanes(NamedTuple):
    """Lanes of one back end.

    Attributes:
        device: as lanes have it.
        target: a target's lane.
        draft: that of a draft beside it.
        profile: a profile with lanes of these names.
        forms: of weights that are compared.
    """

    device: str
    target: str
    draft: str
    profile: Path
    forms: tuple[Dtype, ...]


LANES = {
    "graphs": Lanes(
        "openvino:CPU",
        "openvino:CPU@0",
        "openvino:CPU@1",
        RESULTS / "demos" / "1" / "profile.yaml",
        ("float32", "bfloat16", "int8", "int4"),
    ),
    "torch": Lanes("cpu", "cpu0", "cpu1", RESULTS / "demos-torch" / "1" / "profile.yaml", ("float32", "bfloat16")),
}


def main() -> None:
    """Run, compare, write the result file."""
    parser = arguments(
        __doc__,
        prompts=(Path, "Spec-Bench's question.jsonl, or rows with a prompt"),
        every=(1, "take one prompt of so many of that file"),
        killed=(6, "prompts whose draft is killed, for every schedule"),
        records=(Path("out/exactness"), "folder of the records made"),
        out=RESULT,
        max_new_tokens=48,
    )
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    parser.add_argument("--forms", nargs="+", choices=get_args(Dtype), default=get_args(Dtype))
    parser.add_argument("--no-trees", dest="trees", action="store_false", help="chains alone")
    options = parser.parse_args()
    pair = find_pair(EMBEDDED)
    prompts = _prompts(options, pair)
    lengths = [len(prompt.ids) for prompt in encode(prompts, pair.target_folder)]
    content: dict[str, Any] = {
        "prompts": "shipped" if options.prompts is None else options.prompts.stem,
        "num_prompts": len(prompts),
        "num_long_prompts": sum(length > LONG for length in lengths),
        "longest_prompt": max(lengths),
        "max_new_tokens": options.max_new_tokens,
        "platform": describe_host([lanes.device for lanes in LANES.values()]),
        "measured": measured_pair(pair),
        "lanes": {},
    }
    if options.out.exists() and _is_of_the_same(before := read_result(options.out), content):
        content = before
    for kind in options.lanes:
        for dtype in [form for form in LANES[kind].forms if form in options.forms]:
            own = find_pair(EMBEDDED, dtype=dtype, heads=None if options.trees else ["prompt-lookup"])
            run = _Run(own, prompts, LANES[kind], options)
            results = content["lanes"].setdefault(kind, {}).setdefault(dtype, {})
            for name, result in run.results(done=results):
                results[name] = result
                print(f"{kind}, {dtype}, {name}: {result} of {len(prompts)}", flush=True)
                write_result(options.out, content)


def _prompts(options: argparse.Namespace, pair: ModelPair) -> Sequence[Prompt]:
    """Those of a file; or of the shipped ones some short ones, the long ones, and long ones that join two."""
    if options.prompts is not None:
        return load_prompts(options.prompts)[:: options.every]
    shipped = bundled_prompts()
    passages = [prompt for prompt in shipped if prompt.category in ("rag", "summarization")]
    joined = [
        Prompt(
            prompt_id=f"{one.prompt_id}+{other.prompt_id}", category="joined", turns=(f"{one.text}\n\n{other.text}",)
        )
        for one, other in zip(passages[::2], passages[1::2], strict=True)
    ]
    long = [prompt for prompt in encode(joined, pair.target_folder) if len(prompt.ids) > LONG]
    names = {prompt.name for prompt in long[:6]}
    return [*shipped[::8], *bundled_prompts("long"), *(prompt for prompt in joined if prompt.prompt_id in names)]


class _Run:
    """All schedules in one dtype."""

    def __init__(self, pair: ModelPair, prompts: Sequence[Prompt], lanes: Lanes, options: argparse.Namespace) -> None:
        self._pair, self._lanes, self._num_killed = pair, lanes, options.killed
        self._place = {"target_lane": lanes.target, "draft_lane": lanes.draft}
        self._prompts = [prompt.ids for prompt in encode(prompts, pair.target_folder)]
        self._record = _recorded(pair, prompts, lanes.device, options)
        self._texts = [tuple(entry.text.tolist()) for entry in self._record.prompts]
        # rounds do not depend on times, so the profile may be of another machine
        self._profile = load_profile(lanes.profile)
        self._costs = dict.fromkeys((lane.name for lane in self._profile.lanes), MILLISECONDS)

    def results(self, *, done: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What came of every schedule that is not done yet, one after the other."""
        todo = [(name, schedule) for name, schedule in self._schedules() if name not in done]
        if not todo:
            return
        lanes = device_lanes(self._lanes.device, self._pair.dtype)
        with new_engine(self._pair, lanes, draft_deadline_s=PATIENCE_S, target_deadline_s=PATIENCE_S) as engine:
            for name, schedule in todo:
                yield name, self._compare(engine, schedule) | self._killed(engine, schedule)

    def _compare(self, engine: Engine, schedule: Schedule) -> dict[str, Any]:
        length, made = self._record.max_new_tokens, {}
        for place in random.Random(str(schedule)).sample(range(len(self._prompts)), len(self._prompts)):
            made[place] = engine.generate(schedule, self._prompts[place], max_new_tokens=length)
        made = [made[place] for place in range(len(made))]
        simulated = simulate(schedule, self._profile, self._record, costs=self._costs)
        both = zip(simulated, [one.trace for one in made], strict=True)
        return {
            "texts_equal": sum(one.tokens == text for one, text in zip(made, self._texts, strict=True)),
            "prompts_with_equal_rounds": sum(_rounds(one) == _rounds(other) for one, other in both),
            "num_rounds": sum(len(one.trace.rounds) for one in made),
            "num_lost_drafts": sum(one.trace.has_loss for one in made),
        }

    def _killed(self, engine: Engine, schedule: Schedule) -> dict[str, Any]:
        if not can_lose_its_draft(schedule) or not self._num_killed:
            return {}
        some = slice(None, None, -(-len(self._prompts) // self._num_killed))
        killed = with_kills(engine, schedule, self._prompts[some], self._texts[some], random.Random(0))
        return {"killed": killed._asdict() | {"num_prompts": len(self._prompts[some])}}

    def _schedules(self) -> Iterator[tuple[str, Schedule]]:
        """Plain decoding, all chains, and a tree of every kind that was recorded."""
        drafter = name_of(self._pair.drafter)
        yield "autoregressive", Schedule(method="autoregressive", target_lane=self._lanes.target)
        for name, fields in CHAINS.items():
            yield name, Schedule(**fields, **self._place, drafter=drafter)
        if count := self._record.num_streams:
            fields = {"method": "speculative", "num_speculative_tokens": MAX_WINDOW, "draft_streams": count}
            yield f"speculative, {count} draft streams", Schedule(**fields, **self._place, drafter=drafter)
        for chain in self._record.chains:
            fields = {"method": chain.method, "num_speculative_tokens": MAX_WINDOW}
            yield chain.method, Schedule(**fields, **self._place, drafter=chain.drafter)
        for tree in self._record.trees:
            place = {"target_lane": self._lanes.target} if tree.method == "speculative_streaming" else self._place
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
        num_lost_drafts += made.trace.has_loss
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


def _recorded(pair: ModelPair, prompts: Sequence[Prompt], device: str, options: argparse.Namespace) -> AcceptanceRecord:
    """The record of these models and prompts, made at the first run."""
    reach = Reach(
        max_new_tokens=options.max_new_tokens, max_window=MAX_WINDOW, trees=DYNAMIC_TREES if options.trees else ()
    )
    asked = [measured_pair(pair), [prompt.prompt_id for prompt in prompts], str(reach), pair.dtype, device]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    path = options.records / f"{device.replace(':', '-')}-{pair.dtype}-{name}.npz"
    if path.exists():
        return AcceptanceRecord.load(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return record(pair, prompts, path, reach=reach, device=device, num_threads=1)


def _is_of_the_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both results are of the same prompts, lengths and weights, on the same platform."""
    return all(one.get(key) == value for key, value in json.loads(json.dumps(other, default=str)).items() if value)


def _rounds(trace: Trace) -> list[tuple[Any, ...]]:
    """All fields of a round but its times."""
    return [entry[2:] for entry in trace.rounds]


if __name__ == "__main__":
    main()
