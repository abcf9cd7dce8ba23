"""Steps to be timed are those of a round: they can be run again and again, and feed what they say they feed."""

import numpy as np
import pytest

from decoding.errors import LaneError
from runtime.drafters.language_model.drafter import Drafter
from runtime.wire.measurement import Measurement
from tests.runtime.drafters.language_model.test_drafter import with_streams
from tests.tiny_models import tiny_draft, tiny_target


def drafter(**options):
    return Drafter(tiny_draft(tiny_target(), **options))


class Noted(Drafter):
    """Notes how many rows every call of the model had, and how many of them proposed."""

    def __init__(self, model):
        super().__init__(model)
        self.calls: list[int] = []
        run = model.run

        def noting(ids, **options):
            self.calls.append(np.size(ids))
            return run(ids, **options)

        model.run = noting


@pytest.mark.parametrize(
    ("measurement", "calls"),
    [
        (Measurement(part="draft_step", rows=1, context=20), [1]),
        (Measurement(part="draft_step", rows=3, context=20), [3]),
        (Measurement(part="draft_step", rows=3, context=20, with_features=True, num_proposals=1), [3]),
        (Measurement(part="draft_start", rows=7, context=20, with_features=True, num_proposals=4), [3, 4]),
        (Measurement(part="draft_step", rows=12, context=20, num_guesses=3), [12]),
    ],
)
def test_a_timed_step_feeds_all_its_rows_every_time(measurement, calls):
    """In one call, or that of a window and then that of its branches."""
    noted = Noted(tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=1))
    run = noted.timed_step(measurement)
    noted.calls.clear()
    for _ in range(3):
        run()
    assert noted.calls == calls * 3


def test_the_step_that_starts_branches_reads_features():
    with pytest.raises(LaneError, match="with_features only"):
        drafter(exit_features=(1, 3), feature_layer=1).timed_step(
            Measurement(part="draft_start", rows=5, context=9, num_proposals=2)
        )
    with pytest.raises(LaneError, match="this draft takes none"):
        drafter().timed_step(Measurement(part="draft_step", rows=2, context=9, with_features=True))


@pytest.mark.parametrize(("num_guesses", "shape"), [(0, (1, 1, 3)), (3, (2, 1, 3)), (2, (3, 1, 2))])
def test_timed_streams_guess_after_one_row_or_after_one_of_every_branch(num_guesses, shape):
    model, shapes = with_streams(tiny_draft(tiny_target())), []
    streams = model.streams.forward

    def noting(*args, **options):
        hidden_BRJD = streams(*args, **options)
        shapes.append(tuple(hidden_BRJD.shape[:-1]))
        return hidden_BRJD

    model.streams.forward = noting
    rows = 3 if not num_guesses else 6
    run = Drafter(model).timed_step(Measurement(part="draft_streams", rows=rows, context=20, num_guesses=num_guesses))
    run()
    run()
    assert shapes == [shape] * 2


@pytest.mark.parametrize("part", ["draft_step", "draft_streams"])
def test_rows_that_are_no_whole_number_of_branches_are_refused(part):
    with pytest.raises(LaneError, match="7 rows cannot be timed: they are no whole number of branches"):
        Drafter(with_streams(tiny_draft(tiny_target()))).timed_step(
            Measurement(part=part, rows=7, context=9, num_guesses=3)
        )
