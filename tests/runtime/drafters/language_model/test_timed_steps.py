"""Steps to be timed are those of a round: they can be run again and again, and feed what they say they feed."""

import pytest

from decoding.errors import LaneError
from runtime.drafters.language_model.drafter import Drafter
from runtime.wire.measurement import Measurement
from tests.tiny_models import tiny_draft, tiny_target


def drafter(**options) -> Drafter:
    return Drafter(tiny_draft(tiny_target(), **options))


class Noted(Drafter):
    """Notes how many rows every call of the model had, and how many of them proposed."""

    def __init__(self, model) -> None:
        super().__init__(model)
        self.calls: list[int] = []
        run = model.run

        def noting(ids, **options):
            self.calls.append(ids.numel())
            return run(ids, **options)

        model.run = noting


@pytest.mark.parametrize(
    ("measurement", "rows"),
    [
        (Measurement(part="draft_step", rows=1, context=20), 1),
        (Measurement(part="draft_step", rows=3, context=20), 3),
        (Measurement(part="draft_step", rows=3, context=20, with_features=True, num_proposals=1), 3),
        (Measurement(part="draft_start", rows=7, context=20, with_features=True, num_proposals=4), 7),
    ],
)
def test_a_timed_step_is_one_call_of_all_its_rows_every_time(measurement, rows) -> None:
    noted = Noted(tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=1))
    run = noted.timed_step(measurement)
    noted.calls.clear()
    for _ in range(3):
        run()
    assert noted.calls == [rows] * 3


def test_the_step_that_starts_branches_reads_features() -> None:
    with pytest.raises(LaneError, match="with_features only"):
        drafter(exit_features=(1, 3), feature_layer=1).timed_step(
            Measurement(part="draft_start", rows=5, context=9, num_proposals=2)
        )
    with pytest.raises(LaneError, match="this draft takes none"):
        drafter().timed_step(Measurement(part="draft_step", rows=2, context=9, with_features=True))
