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
    plain, streaming = (profile.lane("npus") for profile in setup.profiles(machine.datasheet()))
    assert streaming.group.all_reduces == {}
    for rows in (1, 2, 64):
        alone_s, streamed_s = (lane.draft_step.at(rows, 600) for lane in (plain, streaming))
        assert streamed_s > alone_s / 2
    assert streaming.draft_step.at(64, 600) > streaming.draft_step.at(1, 600)


def test_the_target_is_the_same_with_either_draft(machine, setup):
    plain, streaming = setup.profiles(machine.datasheet())
    assert plain.lane("gpus") == streaming.lane("gpus")


def test_a_track_sums_up_states_of_its_own_width(machine, setup):
    plain, _ = setup.profiles(machine.datasheet())
    assert plain.lane("npus").group.reduced_bytes_per_row == 2 * TRACKS.hidden_size
    assert plain.lane("gpus").group.reduced_bytes_per_row == 2 * setup.target.shape.hidden_size
