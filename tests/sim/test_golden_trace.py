"""A whole trace, kept as a file: whatever changes it must be meant.

`python -m tests.sim.test_golden_trace` writes the file anew.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hwprofiles.profile import Contention, LatencyTable, LinkProfile, Profile
from sim.world import simulate
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import mirror

GOLDEN = Path(__file__).with_name("golden_trace.json")


def uneven_machine() -> Profile:
    """Costs that grow with rows and context, a link, contention and overheads."""
    step = LatencyTable(
        rows=(1, 4, 16), contexts=(0, 32), seconds=((0.011, 0.013), (0.012, 0.016), (0.017, 0.023)), source="made up"
    )
    return machine(
        lane("target", dispatch_s=0.0002, layer=0.0051, lm_head=0.0073, exit=0.0047),
        lane("draft", dispatch_s=0.0003).model_copy(update={"draft_step": step}),
        links=(LinkProfile(lanes=("target", "draft"), latency_s=0.0001, bytes_per_s=1e6, source="made up"),),
        contention=(Contention(lanes=("target", "draft"), slowdown=(1.07, 1.13), source="made up"),),
        round_overhead_s=0.0004,
    )


def played() -> dict[str, Any]:
    texts = record(prompt("110101110011101", "001010001010001", "000000101000000", prompt_length=9))
    [trace] = simulate(mirror("hybrid", num_tokens=3), uneven_machine(), texts)
    return {
        "decode_s": trace.decode_s,
        "rounds": [list(entry) for entry in trace.rounds],
        "spans": [list(span) for span in sorted(trace.spans, key=lambda span: (span.start_s, span.lane))],
    }


def test_a_known_run_is_played_as_before():
    expected, found = json.loads(GOLDEN.read_text(encoding="utf-8")), json.loads(json.dumps(played()))
    assert found["decode_s"] == pytest.approx(expected["decode_s"], abs=1e-9)
    for name in ("rounds", "spans"):
        assert len(found[name]) == len(expected[name])
        for entry, known in zip(found[name], expected[name], strict=True):
            times = [index for index, value in enumerate(known) if isinstance(value, float)]
            assert [entry[index] for index in times] == pytest.approx([known[index] for index in times], abs=1e-9)
            assert [value for index, value in enumerate(entry) if index not in times] == [
                value for index, value in enumerate(known) if index not in times
            ]


if __name__ == "__main__":
    lines = json.dumps(played()).replace("], [", "],\n[")
    GOLDEN.write_text(lines + "\n", encoding="utf-8")
