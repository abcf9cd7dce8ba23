"""Figures of anchors, held against counting by hand."""

from math import exp

import pytest

from calibrate.profiling.anchors import AnchorSample, SharedAnchor
from calibrate.profiling.samples import Samples
from tests.benchmarks.scripts import RESULTS, load_script


@pytest.fixture(scope="module")
def script():
    return load_script("_demo_anchors")


@pytest.fixture
def demos(script, monkeypatch):
    """Figures of made-up demos: of each the anchors of its runs, and its calibration's samples."""

    def figures(*of_demos):
        monkeypatch.setattr(script, "run_anchors", lambda place: of_demos[place][0])
        monkeypatch.setattr(script, "_samples", lambda place: of_demos[place][1])
        return script.machine(range(len(of_demos)))

    return figures


def test_anchors_in_a_run_are_off_by_half_of_what_lies_between_their_halves(script) -> None:
    ((inner, _),) = script.pace_errors([9.0, 1.1, 1.0, 1.1, 1.0, 9.0])
    assert exp(2 * inner) == pytest.approx(1.1)


def test_anchors_around_a_run_are_off_by_what_those_in_it_say_otherwise(script) -> None:
    ((_, outer),) = script.pace_errors([1.0, 2.0, 4.0, 2.0, 4.0, 2.0])
    assert exp(outer) == pytest.approx(1.5 / 3.0)


def test_lanes_at_once_are_compared_with_the_nearest_anchors_alone(script) -> None:
    alone = [AnchorSample(0.0, "a", 1.0), AnchorSample(3.0, "a", 5.0), AnchorSample(2.0, "b", 2.0)]
    samples = Samples(anchors=alone, shared_anchors=[SharedAnchor(1.0, ("b", "a"), (3.0, 4.0))])
    assert list(script.slowdowns(samples)) == [(1.5, 4.0)]


def at_once(*pairs):
    """Samples of a calibration whose anchors take a second alone."""
    alone = [AnchorSample(0.0, "a", 1.0), AnchorSample(0.0, "b", 1.0)]
    return Samples(anchors=alone, shared_anchors=[SharedAnchor(0.0, ("a", "b"), pair) for pair in pairs])


def test_figures_are_of_all_demos_together(demos) -> None:
    one = [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0]], at_once((1.6, 1.8), (1.0, 1.2))
    other = [[exp(0.2), 1.0, 1.0, 1.0, 1.0, exp(0.2)]], at_once((1.4, 3.0))
    found = demos(one, other)
    assert found["pace_error"] == pytest.approx({"in_between": 0.0, "before_and_after": 0.1, "of": 2})
    assert (found["at_once"]["slow"], found["at_once"]["of"]) == (1, 3)
    assert found["at_once"]["slowdown"]["slow"]["median"] == pytest.approx(1.7)
    assert found["at_once"]["slowdown"]["others"]["median"] == pytest.approx(1.3)


def test_anchors_explain_most_of_what_changes_in_the_committed_demos() -> None:
    read = load_script("_common").read_result
    for name in ("demos", "demos-torch"):
        error = read(RESULTS / f"{name}.json")["machine"]["pace_error"]
        assert error["in_between"] < 0.57 * error["before_and_after"]
