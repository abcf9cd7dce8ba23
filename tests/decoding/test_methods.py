"""Methods driven by hand, with neither world: what they ask of the lanes, and in which order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.errors import ConfigError
from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from decoding.methods import METHODS
from decoding.schedule import Schedule

FIRST, SECOND = Window((1, 2)), Window((3, 4))
SIGNAL = ExitSignal(((7,), (8,), (9,)))
PARTIAL, FULL = Verdict(1, 10), Verdict(2, 11)


class ScriptedLanes:
    """Writes down every verb; its handles are the verbs' names. The sequence ends after `num_rounds` commits."""

    def __init__(self, num_rounds: int) -> None:
        self.log: list[Any] = []
        self._rounds_left = num_rounds

    @property
    def target(self) -> ScriptedLanes:
        return self

    @property
    def draft(self) -> ScriptedLanes:
        return self

    @property
    def unfinished(self) -> bool:
        return self._rounds_left > 0

    def commit(self, window: Window, verdict: Verdict) -> None:
        self._rounds_left -= 1
        self.log.append(("commit", window, verdict))

    def branch(self, window: Window) -> ScriptedLanes:
        self.log.append(("branch", window))
        return self

    def join(self, signal: ExitSignal) -> None:
        self.log.append(("join", signal))

    def __getattr__(self, verb: str) -> Any:
        def start(*arguments: Any) -> str:
            self.log.append((verb, *arguments))
            return f"{verb} is under way"

        return start


def drive(schedule: Schedule, replies: Iterator[Any], *, num_rounds: int) -> list[Any]:
    """Send the replies in turn; the log of verbs, with an entry for each wait."""
    lanes = ScriptedLanes(num_rounds)
    flow = METHODS[schedule.method].flow(lanes, schedule)
    try:
        handle = flow.send(None)
        while True:
            lanes.log.append(("wait", str(handle).split()[0]))
            handle = flow.send(next(replies))
    except StopIteration:
        assert next(replies, None) is None, "the method ended with replies left over"
    return lanes.log


HEADS = [{"method": name, "tree_size": 2} for name in ("medusa", "hydra")]


@pytest.mark.parametrize(
    "fields", [{"method": "speculative"}, *HEADS, {"method": "eagle3", "tree_size": 2, "tree_top_k": 2}]
)
def test_synchronous_decoding_drafts_from_the_last_verdict_and_verifies_in_turn(fields):
    schedule = Schedule(**fields, target_lane="t", draft_lane="d", num_speculative_tokens=2)
    assert drive(schedule, iter([FIRST, PARTIAL, SECOND, FULL]), num_rounds=2) == [
        ("rollout", None),
        ("wait", "rollout"),
        ("verify", FIRST),
        ("wait", "verify"),
        ("commit", FIRST, PARTIAL),
        ("rollout", PARTIAL),
        ("wait", "rollout"),
        ("verify", SECOND),
        ("wait", "verify"),
        ("commit", SECOND, FULL),
    ]


def test_mirror_with_an_exit_starts_everything_before_it_waits():
    schedule = Schedule(
        method="mirror",
        target_lane="t",
        draft_lane="d",
        num_speculative_tokens=2,
        root_source="exit",
        exit_layer=4,
        exit_top_k=1,
    )
    assert drive(schedule, iter([FIRST, SIGNAL, PARTIAL, SECOND, SIGNAL, FULL]), num_rounds=2) == [
        ("rollout",),
        ("wait", "rollout"),
        ("prefix", FIRST, 4),
        ("suffix",),
        ("branch", FIRST),
        ("wait", "prefix"),
        ("join", SIGNAL),
        ("wait", "suffix"),
        ("commit", FIRST, PARTIAL),
        ("take", PARTIAL),
        ("wait", "take"),
        ("prefix", SECOND, 4),
        ("suffix",),
        ("branch", SECOND),
        ("wait", "prefix"),
        ("join", SIGNAL),
        ("wait", "suffix"),
        ("commit", SECOND, FULL),
    ]


def test_a_window_that_never_came_is_verified_all_the_same():
    """A lost draft lane replies `NO_WINDOW`: the target goes on alone."""
    schedule = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=2)
    log = drive(schedule, iter([NO_WINDOW, Verdict(0, 5)]), num_rounds=1)
    assert log[2:] == [("verify", NO_WINDOW), ("wait", "verify"), ("commit", NO_WINDOW, Verdict(0, 5))]


def test_a_method_that_is_registered_is_one_that_schedules_may_name(monkeypatch):
    fields = {"target_lane": "t", "draft_lane": "d", "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="there is no method 'toy'"):
        Schedule(method="toy", **fields)
    monkeypatch.setitem(METHODS, "toy", replace(METHODS["speculative"], name="toy"))
    assert not Schedule(method="toy", **fields).is_tree


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "decoding" / "methods"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_reply_has_a_declared_type(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    declared = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Yield):
            assert {name.id for name in node.targets if isinstance(name, ast.Name)} <= declared
        assert not (isinstance(node, ast.Call) and any(isinstance(one, ast.Yield) for one in node.args))
