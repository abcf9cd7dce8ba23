"""What compiled lanes gain over lanes of torch, schedule by schedule.

    python benchmarks/backends.py --minutes 10

Decodes the shipped prompts in turns: every schedule by torch, then the same by OpenVINO with weights in bfloat16 and
in int8, then the next one, then the next prompt, until the minutes are over. So what the machine does meanwhile meets
all alike. Ratios are those of neighbours: how many times faster than torch. Every text is compared with that of plain
decoding in the same lane. Writes benchmarks/results/backends.json. Needs two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from _common import EMBEDDED, RESULTS, arguments, measured_pair, quartiles, write_result

from calibrate.prompts import EncodedPrompt, bundled_prompts
from decoding.metrics import tpot_s
from decoding.schedule import Schedule
from hwprofiles.host import describe_host, lanes_of
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.wire.operations import Dtype

RESULT = RESULTS / "backends.json"
_WINDOW: Final = 4
_LAST_WARM_UP: Final = 2
"""Passes over all schedules before the first that counts: graphs are compiled in them."""


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
)


class Run(NamedTuple):
    """One text: seconds per token, and whether it is that of plain decoding in its lane."""

    tpot_s: float
    is_plain_text: bool


def main() -> None:
    """Measure and write the result file."""
    options = _options()
    pair = find_pair(EMBEDDED, dtype="bfloat16")
    prompts = encode(bundled_prompts(), pair.target_folder)
    with ExitStack() as stack:
        engines = {one: stack.enter_context(_engine(pair, one)) for one in CONTENDERS}
        runs = _in_turns(engines, pair, prompts, options)
    content = {
        "platform": describe_host(),
        "measured": measured_pair(pair),
        "max_new_tokens": options.max_new_tokens,
        "window": _WINDOW,
        "schedules": {name: _result(own) for name, own in runs.items()},
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


def _in_turns(
    engines: Mapping[Contender, Engine], pair: ModelPair, prompts: Sequence[EncodedPrompt], options: argparse.Namespace
) -> dict[str, dict[str, list[Run]]]:
    """Runs by schedule and back end; those of one place in their lists are neighbours in time."""
    assert pair.drafter is not None, "the embedded model has a draft"
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    plans = {
        one: schedules_of([lane.name for lane in lanes_of(one.device)], pair.drafter.name, options.exit_layer)
        for one in engines
    }
    deadline = None
    for turn in count():
        if turn == _LAST_WARM_UP:
            found.clear()
            deadline = time.monotonic() + 60 * options.minutes
        prompt = prompts[turn % len(prompts)]
        texts: dict[tuple[Contender, str], tuple[int, ...]] = {}
        for name in next(iter(plans.values())):
            for one, engine in engines.items():
                made = engine.generate(plans[one][name], prompt.ids, max_new_tokens=options.max_new_tokens)
                plain = texts.setdefault((one, plans[one][name].target_lane), made.tokens)
                found[name][one.name].append(Run(tpot_s([made.trace]), made.tokens == plain))
        print(f"turn {turn}", flush=True)
        if deadline is not None and time.monotonic() > deadline:
            return found
    raise AssertionError("turns have an end")


def _result(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    return dict(_by_contender(runs))


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


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of turns that count")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--exit-layer", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
