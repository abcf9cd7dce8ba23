"""What compiled lanes gain over lanes of torch, schedule by schedule.

    python benchmarks/backends.py

Decodes the shipped prompts in rounds, one prompt each: every schedule by torch, then the same by OpenVINO with weights
in bfloat16, int8 and int4, then the next one. Every other round goes backwards. So what the machine does meanwhile
meets all alike. Ratios are those of neighbours: how many times faster than torch. Every text is compared with that of
plain decoding in the same lane. Writes benchmarks/results/backends.json. Needs two quiet cores, and 8 GB of memory:
every back end and form has lanes of its own.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from _common import EMBEDDED, RESULTS, arguments, facts, in_turn, quartiles, rounds_of, write_result

from calibrate.prompts import EncodedPrompt, bundled_prompts
from decoding.metrics import tpot_s
from decoding.schedule import Schedule
from hwprofiles.host import lanes_of
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from runtime.backends.lane_device import Dtype
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec

RESULT = RESULTS / "backends.json"
_WINDOW: Final = 4


class Contender(NamedTuple):
    """A back end with a form of weights."""

    name: str
    device: str
    dtype: Dtype


TORCH: Final = "torch bfloat16"
CONTENDERS: Final = (
    Contender(TORCH, "cpu", "bfloat16"),
    Contender("openvino bfloat16", "openvino:CPU", "bfloat16"),
    Contender("openvino int8", "openvino:CPU", "int8"),
    Contender("openvino int4", "openvino:CPU", "int4"),
)


class Run(NamedTuple):
    """One text: seconds per token, and whether it is that of plain decoding in its lane."""

    tpot_s: float
    is_plain_text: bool


def main() -> None:
    """Measure and write the result file."""
    options = arguments(__doc__, out=RESULT, rounds=7, max_new_tokens=64, exit_layer=20).parse_args()
    pair = find_pair(EMBEDDED, heads=(), dtype="bfloat16")
    prompts = encode(bundled_prompts(), pair.target_folder)
    with ExitStack() as stack:
        engines = {one: stack.enter_context(_engine(pair, one)) for one in CONTENDERS}
        runs = _in_turns(engines, _plans(pair, options.exit_layer), prompts, options)
    content = {
        **facts(pair),
        "max_new_tokens": options.max_new_tokens,
        "num_rounds": options.rounds,
        "window": _WINDOW,
        "exit_layer": options.exit_layer,
        "schedules": {name: dict(_by_contender(own)) for name, own in runs.items()},
    }
    print(json.dumps(content["schedules"], indent=2))
    write_result(options.out, content)


def _engine(pair: ModelPair, one: Contender) -> Engine:
    lanes = lanes_of(one.device)
    specs = [
        LaneSpec(name=lane.name, cores=lane.cores, num_threads=lane.num_threads, dtype=one.dtype) for lane in lanes
    ]
    return new_engine(pair, specs)


def schedules_of(lanes: Sequence[str], drafter: str, exit_layer: int) -> dict[str, Schedule]:
    """Plain, synchronous and mirror on two halves of the cores and the whole, named in this order."""
    first, second, whole = lanes
    draft: dict[str, Any] = {"num_speculative_tokens": _WINDOW, "drafter": drafter}
    split = {"target_lane": first, "draft_lane": second, **draft}
    return {
        "plain, one half": Schedule(method="autoregressive", target_lane=first),
        "plain, whole": Schedule(method="autoregressive", target_lane=whole),
        "synchronous, whole": Schedule(method="speculative", target_lane=whole, draft_lane=whole, **draft),
        "synchronous, halves": Schedule(method="speculative", **split),
        "mirror, halves": Schedule(method="mirror", root_source="exit", exit_layer=exit_layer, exit_top_k=4, **split),
    }


def _plans(pair: ModelPair, exit_layer: int) -> dict[Contender, dict[str, Schedule]]:
    """Every contender's schedules, on its own lanes."""
    assert pair.drafter is not None, "the embedded model has a draft"
    return {
        one: schedules_of([lane.name for lane in lanes_of(one.device)], pair.drafter.name, exit_layer)
        for one in CONTENDERS
    }


def turns(plans: Mapping[Contender, Mapping[str, Schedule]], index: int) -> Iterator[tuple[str, Contender]]:
    """The schedules of a round, each by all contenders before the next; backwards in every other round.

    Plain decoding comes first all the same: texts are compared with its.
    """
    names = in_turn(next(iter(plans.values())), index)
    for name in sorted(names, key=lambda name: not name.startswith("plain")):
        yield from ((name, one) for one in in_turn(plans, index))


def _in_turns(
    engines: Mapping[Contender, Engine],
    plans: Mapping[Contender, Mapping[str, Schedule]],
    prompts: Sequence[EncodedPrompt],
    options: argparse.Namespace,
) -> dict[str, dict[str, list[Run]]]:
    """Runs by schedule and back end; those of one place in their lists are neighbours in time."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for index, counts in rounds_of(options.rounds):
        prompt = prompts[index % len(prompts)]
        texts: dict[tuple[Contender, str], tuple[int, ...]] = {}
        for name, one in turns(plans, index):
            schedule = plans[one][name]
            made = engines[one].generate(schedule, prompt.ids, max_new_tokens=options.max_new_tokens, eos_token_ids=())
            plain = texts.setdefault((one, schedule.target_lane), made.tokens)
            if counts:
                found[name][one.name].append(Run(tpot_s([made.trace]), made.tokens == plain))
    return {name: found[name] for name in next(iter(plans.values()))}


def _by_contender(runs: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Quartiles of seconds per token, and of how many times faster than torch."""
    for name, own in runs.items():
        result: dict[str, Any] = {
            "num_texts": len(own),
            "num_plain_texts": sum(run.is_plain_text for run in own),
            "tpot_s": quartiles([run.tpot_s for run in own]),
        }
        if name != TORCH:
            pairs = zip(runs[TORCH], own, strict=True)
            result["times_as_fast_as_torch"] = quartiles([torch.tpot_s / run.tpot_s for torch, run in pairs])
        yield name, result


if __name__ == "__main__":
    main()
