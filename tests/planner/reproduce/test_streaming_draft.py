import numpy as np

from costs.cost_model import Part
from hwprofiles.model_shape import model_shape
from planner.reproduce.streaming_draft import NUM_STREAMS, rows_with_streams

TRACKS = model_shape("mirror-track-0.6b")


def test_streams_cost_less_than_rows_of_their_own_and_more_than_nothing():
    for rows in (8, 64):
        assert rows < rows_with_streams(TRACKS, rows) < rows * (1 + NUM_STREAMS)


def test_in_a_draft_of_as_many_layers_as_streams_run_through_they_are_whole_rows():
    shallow = TRACKS.model_copy(update={"num_layers": 4})
    assert rows_with_streams(shallow, 64) == 64 * (1 + NUM_STREAMS)


def test_a_window_takes_half_as_many_steps_each_a_little_longer(machine, setup):
    plain, streaming = setup.profiles(machine.datasheet())
    assert streaming.profile.lane("npus").group.all_reduces == {}

    def step_s(known, rows):
        return float(known.costs["npus"].seconds(Part("draft_step"), rows, np.array([600.0]))[0])

    assert all(step_s(streaming, rows) > step_s(plain, rows) / 2 for rows in (1, 2, 64))
    assert step_s(streaming, 64) > step_s(streaming, 1)


def test_the_target_is_the_same_with_either_draft(machine, setup):
    plain, streaming = setup.profiles(machine.datasheet())
    assert plain.profile.lane("gpus") == streaming.profile.lane("gpus")
    assert plain.costs["gpus"] is streaming.costs["gpus"]


def test_a_track_sums_up_states_of_its_own_width(machine, setup):
    plain, _ = setup.profiles(machine.datasheet())
    assert plain.profile.lane("npus").group.reduced_bytes_per_row == 2 * TRACKS.hidden_size
    assert plain.profile.lane("gpus").group.reduced_bytes_per_row == 2 * setup.target.shape.hidden_size
