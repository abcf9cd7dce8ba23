"""A simulation runs where torch is not installed, late imports included."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SIMULATE = """
import sys
sys.modules["torch"] = None
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.worlds.machines import machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import mirror
texts = record(prompt("1010111", "0100000"))
[trace] = simulate(mirror("exit"), machine(), texts)
assert trace.decode_s == predict(mirror("exit"), machine(), texts).decode_s
print(trace.decode_s)
"""


def test_a_simulation_needs_no_torch() -> None:
    result = subprocess.run([sys.executable, "-c", SIMULATE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.stderr) == ("40.0", "")
