"""What a model does for the first time is compiled then: it is done once before it is timed."""

from dataclasses import replace
from types import SimpleNamespace

from runtime.wire.measurement import Measurement
from runtime.worker.timing import MeasureRole

STEP = Measurement(part="head_step", rows=4, context=20, repeats=2, warm_up=0)


class CountingDrafter:
    """A head whose steps count themselves."""

    timed_parts, methods, feature_layers = ("head_step",), ("eagle2",), ()

    def __init__(self):
        self.steps: list[int] = []

    def timed_step(self, measurement):
        return lambda: self.steps.append(measurement.rows)

    def prefill(self, prompt, **_asked):
        self.steps.append(len(prompt) - 1)


def runs(role, measurement):
    """How often something was done for being timed once more."""
    before = len(role.drafter.steps)
    assert len(role.measure(measurement)) == measurement.repeats
    return len(role.drafter.steps) - before


def test_the_first_time_of_every_size_and_model_is_not_kept_and_more_repeats_are_no_other_size():
    role = MeasureRole(channel=None)
    role.drafter = first = CountingDrafter()
    assert [runs(role, STEP) for _ in range(3)] == [3, 2, 2]
    assert runs(role, replace(STEP, rows=8)) == 3
    assert runs(role, replace(STEP, repeats=5)) == 5
    assert [runs(role, replace(STEP, rows=9, warm_up=2)) for _ in range(2)] == [4, 4], "warming up is enough"
    role.drafter = CountingDrafter()
    assert runs(role, STEP) == 3
    role.drafter = first
    assert runs(role, STEP) == 2, "one that was kept knows it still"


def test_a_prompt_is_read_twice_at_first_and_then_once_whatever_its_length():
    """A long one takes seconds, and its length is new to a model that runs, too."""
    role = MeasureRole(channel=None)
    role.target, role.drafter = SimpleNamespace(config=SimpleNamespace(vocab_size=9)), CountingDrafter()
    for rows in (16, 40, 16, 24):
        role.measure(Measurement(part="draft_prefill", rows=rows, repeats=1, warm_up=0))
    assert role.drafter.steps == [16, 16, 40, 16, 24]
