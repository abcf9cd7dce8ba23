"""What a lane is asked and what it replies arrive as they were sent; what no lane knows is a type error."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import Candidates, ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from runtime.target.target_model import TargetModel
from runtime.wire import codec
from runtime.wire.channel import Block, Channel
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Drafted, DrafterTraits, SequenceStart, TimedReply, answer_to, call
from runtime.worker.roles import DraftRole
from runtime.worker.server import LaneServer
from runtime.worker.timing import MeasureRole

ROOT = Path(__file__).parents[3]
SCHEDULE = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=3)
BLOCK = Block("bfloat16", (2, 1), b"abcd")


def across(fields, blocks=()):
    near, far = [Channel(end) for end in socket.socketpair()]
    near.send(fields, blocks)
    received = far.receive(timeout_s=5)
    near.close()
    far.close()
    return received


def through(value):
    written = codec.write(value)
    received = across({"value": written.json}, written.blocks)
    return codec.read(type(value), received.fields["value"], received.blocks)


ids = st.integers(0, 150_000)
windows = st.builds(
    lambda tokens, num_alternatives, distributions: Window(
        tuple(tokens),
        tuple(tuple(range(token, token + num_alternatives)) for token in tokens) if num_alternatives else (),
        tuple(
            Candidates((token, token + 1), (share, 1 - share))
            for token, share in zip(tokens, distributions, strict=False)
        ),
    ),
    st.lists(ids, max_size=8),
    st.integers(0, 3),
    st.lists(st.floats(0, 1), min_size=8, max_size=8) | st.just([]),
)


tree_windows = st.lists(ids, min_size=1, max_size=20).map(
    lambda tokens: Window(tuple(tokens), parents=tuple(token % (place + 1) - 1 for place, token in enumerate(tokens)))
)


signals = st.builds(
    lambda rows, features: ExitSignal(tuple(map(tuple, rows)), tuple((-0.5, -2.25) for _ in rows), features),
    st.lists(st.lists(ids, min_size=2, max_size=2), min_size=1, max_size=5),
    st.none() | st.just(BLOCK),
)
verdicts = st.builds(
    Verdict,
    st.integers(0, 16),
    ids,
    st.none() | st.just(Block("float32", (1, 1), b"abcd")),
    st.lists(st.integers(0, 63)).map(tuple),
    st.none() | tree_windows | st.just(Window(())),
)


@given(windows | tree_windows | signals | verdicts)
def test_values_survive_exactly(value):
    assert through(value) == value


START = SequenceStart(prompt=[3, 1, 2], max_new_tokens=9, schedule=SCHEDULE, temperature=0.5, seed=4)
TRAITS = DrafterTraits(folder=Path("b"), feature_layers=(4,), raw_features=False, methods=("medusa",), num_streams=0)
DRAFTED = Drafted(window=Window((5,)), spans=[["step", 1.0, 2.0, 3]], hit=False)
SIGNAL = ExitSignal(((1, 2),), ((-0.5, -1.0),), BLOCK)


@pytest.mark.parametrize(
    ("method", "args", "reply"),
    [
        (LaneServer.ping, [(BLOCK, BLOCK)], None),
        (LaneServer.load_target, [Path("a/b"), None, "float32"], None),
        (LaneServer.load_draft, [Path("a"), Path("b"), "bfloat16"], TRAITS),
        (MeasureRole.measure, [Measurement(part="exit", rows=3, exit_layer=2)], [0.25, 0.5]),
        (TargetModel.prefill, [[5, 2], 20, START.sampling, (2, 4), True], BLOCK),
        (TargetModel.prefill, [[5, 2], 20, START.sampling, (), False], None),
        (TargetModel.prefix, [Window((3,)), 2, 5], SIGNAL),
        (TargetModel.verify, [Window((3, 4), (), (), (-1, -1))], Verdict(0, 7)),
        (TargetModel.suffix, [], Verdict(1, 2, BLOCK, (0,), Window((5,), parents=(-1,)))),
        (DraftRole.prefill, [START, BLOCK], None),
        (DraftRole.rollout, [[4, 5], None], DRAFTED),
        (DraftRole.join, [SIGNAL], None),
        (DraftRole.take, [1, 2], DRAFTED),
        (DraftRole.drop, [], DRAFTED.spans),
    ],
)
def test_operations_and_their_replies_arrive_as_they_were_sent(method, args, reply):
    asked = across(*call(7, method, *args))
    arrived = codec.read_fields(get_type_hints(method), asked.fields["fields"], asked.blocks)
    assert [*arrived.values()] == args
    written = codec.write(reply)
    answer = across({"id": 7, "start_s": 1.0, "reply": written.json, "end_s": 2.0}, written.blocks)
    assert answer_to(method, answer) == TimedReply(reply, 1.0, 2.0)


MISTAKES = """\
from decoding.messages import Verdict, Window
from runtime.lanes.lane import Lane
from runtime.target.target_model import TargetModel

def ask(lane: Lane, window: Window) -> None:
    good: Verdict = lane.request(TargetModel.verify, window).result().value
    lane.request(TargetModel.verify, windw=window)
    lane.request(TargetModel.verfy, window)
    lane.request(TargetModel.prefix, window, "2", 5)
    lane.request("verify")
    lane.request(TargetModel.suffix).result().value.num_acepted
    bad: Window = lane.request(TargetModel.verify, window).result().value
"""


def test_a_misspelt_operation_or_argument_is_a_type_error(tmp_path):
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(MISTAKES)
    checked = [
        f"runtime/{one}.py" for one in ("wire/operations", "wire/codec", "lanes/lane", "target/target_model", "arrays")
    ]
    # other modules are left out: reading torch and numpy would take most of the time
    options = ["--config-file=", "--strict", "--follow-imports=skip", f"--cache-dir={tmp_path / 'cache'}"]
    options += ["--python-version=3.11", "--namespace-packages", "--explicit-package-bases"]
    command = [sys.executable, "-m", "mypy", *options, *checked, "decoding/messages.py", str(mistakes)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = {int(line) for line in re.findall(r"mistakes\.py:(\d+): error", found.stdout)}
    assert lines == {7, 8, 9, 10, 11, 12}, found.stdout + found.stderr
