"""Every head, hidden unit and row of a model is on a rank, and only what must be is on two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ModelError
from runtime.parallel.sharded_decoder import Share, run_of
from tests.tiny_models import tiny_config


def shares(config, world_size):
    return [Share.of(config, rank, world_size) for rank in range(world_size)]


@given(whole=st.integers(0, 200), world_size=st.integers(1, 20))
def test_runs_follow_each_other_and_differ_by_one_at_most(whole, world_size):
    runs = [run_of(whole, rank, world_size) for rank in range(world_size)]
    assert [index for run in runs for index in run] == list(range(whole))
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
    assert [head for share in dealt for head in share.heads] == list(range(config.num_heads))
    if world_size <= num_kv:
        assert [head for share in dealt for head in share.kv_heads] == list(range(num_kv))
    for share in dealt:
        own = share.of_config(config)
        for place, head in enumerate(share.heads):
            # as attention pairs them: equal groups of neighbours
            assert share.kv_heads[place // own.num_queries_per_kv] == head // group


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
