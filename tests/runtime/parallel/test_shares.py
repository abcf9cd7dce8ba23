"""Every head, hidden unit and row of a model is on a rank, and only what must be is on two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ModelError
from runtime.parallel.sharded_decoder import IndexRange, Share
from tests.tiny_models import tiny_config


def indices(run):
    return list(range(run.start, run.stop))


def shares(config, world_size):
    return [Share.of(config, rank, world_size) for rank in range(world_size)]


@given(whole=st.integers(0, 200), world_size=st.integers(1, 20))
def test_runs_follow_each_other_and_differ_by_one_at_most(whole, world_size):
    runs = [IndexRange.of(whole, rank, world_size) for rank in range(world_size)]
    assert [index for run in runs for index in indices(run)] == list(range(whole))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


@given(num_kv=st.integers(1, 8), group=st.integers(1, 8), world_size=st.integers(1, 16))
def test_every_query_head_is_on_one_rank_next_to_the_keys_it_reads(num_kv, group, world_size):
    config = tiny_config(num_heads=num_kv * group, num_kv_heads=num_kv)
    can_be_split = world_size <= num_kv or (world_size % num_kv == 0 and world_size <= num_kv * group)
    if not can_be_split:
        with pytest.raises(ModelError, match=f"split over {world_size} ranks"):
            shares(config, world_size)
        return
    dealt = shares(config, world_size)
    assert [head for share in dealt for head in indices(share.heads)] == list(range(config.num_heads))
    for share in dealt:
        own = share.of_config(config)
        for place, head in enumerate(indices(share.heads)):
            # as attention pairs them: equal groups of neighbours
            read = share.kv_heads.start + place // own.num_queries_per_kv
            assert read == head // group
            assert read < share.kv_heads.stop


def test_key_value_heads_are_on_one_rank_where_there_are_enough():
    dealt = shares(tiny_config(num_heads=9, num_kv_heads=3), 2)
    assert [indices(share.kv_heads) for share in dealt] == [[0], [1, 2]]
    assert [len(share.heads) for share in dealt] == [3, 6]


def test_the_sizes_of_a_share_are_those_of_a_smaller_model():
    config = tiny_config(num_heads=4, num_kv_heads=2, intermediate_size=25)
    own = Share.of(config, 1, 2).of_config(config)
    assert (own.num_heads, own.num_kv_heads, own.intermediate_size) == (2, 1, 13)
    assert (own.hidden_size, own.vocab_size, own.num_layers) == (16, 61, 4)


@pytest.mark.parametrize(
    ("changes", "world_size", "named"),
    [
        ({"num_heads": 4, "num_kv_heads": 4}, 5, "num_heads 4"),
        ({"intermediate_size": 3}, 4, "intermediate_size 3"),
        ({"num_heads": 6, "num_kv_heads": 3}, 4, "num_kv_heads 3"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(changes, world_size, named):
    with pytest.raises(ModelError, match=named):
        Share.of(tiny_config(**changes), 0, world_size)
