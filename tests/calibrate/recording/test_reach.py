import pytest

from calibrate.recording.reach import usual_exits


@pytest.mark.parametrize(
    ("num_layers", "feature_layers", "expected"),
    [(30, (), (15,)), (30, (2, 10, 20), (20,)), (4, (1, 2), (2,)), (4, (1, 4), (3,)), (2, (), (1,)), (1, (), ())],
)
def test_an_exit_that_nobody_trained_is_not_before_what_the_draft_reads(num_layers, feature_layers, expected):
    assert usual_exits(num_layers, feature_layers) == expected
