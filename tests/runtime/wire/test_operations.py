"""What a lane is asked and what it replies arrive as they were sent; what no lane knows is an error of types."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runtime.wire.operations as ops
from decoding.messages import Candidates, ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from runtime.wire import codec
from runtime.wire.channel import Block, Channel
from runtime.wire.measurement import Measurement

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


def handled(operation, handle):
    """What a handler in another process makes of an operation."""
    message = operation.message(7)
    written = type(operation).handled_by(handle).run(across(message.fields, message.blocks))
    answer = across({"id": 7, "start_s": 1.0, "reply": written.json, "end_s": 2.0}, written.blocks)
    return type(operation).answer(answer)


START = ops.SequenceStart(prompt=[3, 1, 2], max_new_tokens=9, schedule=SCHEDULE, temperature=0.5, seed=4)


@pytest.mark.parametrize(
    "operation",
    [
        ops.Ping(load=(BLOCK, BLOCK)),
        ops.LoadTarget(target=Path("a/b"), exits=None, dtype="float32"),
        ops.LoadDraft(target=Path("a"), drafter=Path("b"), dtype="bfloat16"),
        ops.Measure(measurement=Measurement(part="exit", rows=3, exit_layer=2)),
        ops.PrefillTarget(start=START, feature_layers=(2, 4), raw_features=True),
        ops.PrefillDraft(start=START, features=BLOCK),
        ops.Verify(window=Window((3, 4), (), (), (-1, -1))),
        ops.Prefix(window=Window((3,)), exit_layer=2, num_candidates=5),
        ops.Rollout(committed=[4, 5], features=None),
        ops.Join(signal=ExitSignal(((1, 2),), ((-0.5, -1.0),), BLOCK)),
        ops.Take(num_accepted=1, next_token=2),
    ],
)
def test_operations_arrive_as_they_were_sent(operation):
    class ArrivedError(Exception):
        pass

    def handle(arrived):
        raise ArrivedError(arrived)

    with pytest.raises(ArrivedError) as found:
        handled(operation, handle)
    assert found.value.args == (operation,)


@pytest.mark.parametrize(
    ("operation", "reply"),
    [
        (ops.Ping(), None),
        (ops.Measure(measurement=Measurement(part="verify")), [0.25, 0.5]),
        (ops.PrefillTarget(start=START, feature_layers=(2,), raw_features=False), BLOCK),
        (ops.PrefillTarget(start=START, feature_layers=(), raw_features=False), None),
        (ops.Suffix(), Verdict(1, 2, BLOCK, (0,), Window((5,), parents=(-1,)))),
        (
            ops.Take(num_accepted=0, next_token=1),
            ops.Drafted(window=Window((5,)), spans=[["step", 1.0, 2.0, 3]], hit=False),
        ),
        (
            ops.LoadDraft(target=Path("a"), drafter=Path("b"), dtype="bfloat16"),
            ops.DrafterTraits(
                folder=Path("b"), feature_layers=(4,), raw_features=False, methods=("medusa",), num_streams=0
            ),
        ),
    ],
)
def test_replies_arrive_as_they_were_sent(operation, reply):
    assert handled(operation, lambda _: reply) == ops.Answer(reply, 1.0, 2.0)


def test_every_operation_has_a_name_of_its_own():
    kinds = [kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Operation)]
    names = [kind.__name__ for kind in kinds if kind is not ops.Operation]
    assert len(names) == len(set(names)) == 21


MISTAKES = """\
from decoding.messages import Verdict, Window
from runtime.lanes.lane import Lane
from runtime.wire.operations import Ping, Suffix, Verify
from runtime.wire import operations

def ask(lane: Lane, window: Window) -> None:
    good: Verdict = lane.request(Verify(window=window)).result().value
    lane.request(Verify(windw=window))
    lane.request(operations.Verfy(window=window))
    lane.request("verify")
    lane.request(Suffix()).result().value.num_acepted
    bad: Verdict = lane.request(Ping()).result().value

def handle(operation: Verify) -> Verdict:
    return Verdict(0, operation.window.tokns[0])

Verify.handled_by(handle)
Suffix.handled_by(handle)
"""


def test_a_misspelt_operation_or_field_is_an_error_of_types(tmp_path):
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(MISTAKES)
    checked = ["runtime/wire/operations.py", "runtime/wire/codec.py", "runtime/lanes/lane.py", "decoding/messages.py"]
    # other modules are left out: reading torch and numpy would take most of the time
    options = ["--config-file=", "--strict", "--follow-imports=skip", f"--cache-dir={tmp_path / 'cache'}"]
    options += ["--python-version=3.11", "--namespace-packages", "--explicit-package-bases"]
    command = [sys.executable, "-m", "mypy", *options, *checked, str(mistakes)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = {int(line) for line in re.findall(r"mistakes\.py:(\d+): error", found.stdout)}
    assert lines == {8, 9, 10, 11, 12, 15, 18}, found.stdout + found.stderr
