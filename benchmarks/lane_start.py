"""How long a lane takes from nothing to its first token, and the memory that it has then: by graphs, and by torch.

    python benchmarks/lane_start.py

A process is started, loads its model, and prepares for a sequence; what can be kept on disk is there. Lanes take turns,
so that a machine that changes its pace changes it for all. Of the target its exits are loaded too. Writes
benchmarks/results/lane-start.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import _common

from decoding.schedule import Schedule
from mirrorsd.model_pair import ModelPair, find_pair, folder_of
from runtime.backends.lane_device import Dtype
from runtime.lanes.lane import Lane, LaneSpec
from runtime.target.target_model import TargetModel
from runtime.wire.operations import SequenceStart
from runtime.worker.roles import DraftRole
from runtime.worker.server import LaneServer

PROMPT, NEW_TOKENS = 100, 64


class Kind(NamedTuple):
    """A lane to be started: what it is in a sequence, where, and with weights of which form."""

    role: str
    device: str
    dtype: Dtype

    def __str__(self) -> str:
        return ", ".join(self)


ROLES: Final = {
    "plain target": Schedule(method="autoregressive", target_lane="target"),
    "target": Schedule(
        method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=3, drafter="draft"
    ),
}
ROLES["draft"] = ROLES["target"]
KINDS: Final = tuple(
    Kind(role, device, dtype)
    for role in ROLES
    for device, dtype in (("cpu0", "bfloat16"), ("openvino:CPU@0", "bfloat16"), ("openvino:CPU@0", "int8"))
)


def main() -> None:
    """Measure and write the result file."""
    options = _common.arguments(__doc__, out=_common.RESULTS / "lane-start.json", rounds=7).parse_args()
    pair = find_pair(_common.EMBEDDED, heads=(), dtype="bfloat16")
    # the first round fills the cache on disk
    found = _common.in_rounds(KINDS, lambda kind, _: start(kind, pair), options.rounds, warm_up=1)
    _common.print_result(options.out, result(found, pair))


def start(kind: Kind, pair: ModelPair) -> dict[str, float]:
    """Return seconds until a lane answers, has its model, and has compiled what its sequence needs; and its memory."""
    sequence = SequenceStart(
        prompt=tuple(range(PROMPT)), schedule=ROLES[kind.role], max_new_tokens=NEW_TOKENS, temperature=0.0, seed=0
    )
    begin = time.perf_counter()
    with closing(Lane(LaneSpec(name=kind.device, cores=(0,), num_threads=1))) as lane:
        lane.start()
        lane.request(LaneServer.ping).result()
        answers_s = time.perf_counter() - begin
        if kind.role == "draft":
            assert pair.drafter is not None, "the default model has a draft"
            lane.request(LaneServer.load_draft, pair.target_folder, pair.drafter.folder, kind.dtype).result()
        else:
            lane.request(LaneServer.load_target, pair.target_folder, folder_of(pair.exits), kind.dtype).result()
        loaded_s = time.perf_counter() - begin
        if kind.role == "draft":
            lane.request(DraftRole.prepare, sequence).result()
        else:
            sizes = {"num_slots": sequence.num_slots, "rows": sequence.window_rows}
            lane.request(TargetModel.prepare, num_prompt=len(sequence.prompt), **sizes).result()
        ready_s = time.perf_counter() - begin
        return {"answers_s": answers_s, "loaded_s": loaded_s, "ready_s": ready_s} | memory_mb(lane.process_id)


def memory_mb(process_id: int) -> dict[str, float]:
    """Return the megabytes of a process that are in memory, and those of them that are no copy of a file."""
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kilobytes = {name: float(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    return {"resident_mb": kilobytes["Rss"] / 1e3, "anonymous_mb": kilobytes["Anonymous"] / 1e3}


def result(found: Mapping[Kind, list[dict[str, float]]], pair: ModelPair) -> dict[str, Any]:
    """All rounds, and their quartiles."""
    return {
        **_common.facts(pair),
        "sequence": f"{PROMPT} tokens and {NEW_TOKENS} after them, windows of 3",
        "lanes": {
            str(kind): {part: _common.quartiles([one[part] for one in rounds], 3) for part in rounds[0]}
            | {"rounds": rounds}
            for kind, rounds in found.items()
        },
    }


if __name__ == "__main__":
    main()
