"""Batches in the simulated world: as a play of every sequence by hand has it, and what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decoding.errors import ConfigError, OutOfRangeError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Contention, LatencyTable, Profile
from sim.acceptance.acceptance_model import DrawnAcceptance
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.batch_prediction import best_by_batch, predict_batch, switch_off_at
from sim.evaluator import predict
from tests.sim.batch.by_hand import ByHand
from tests.sim.test_block_drafters import block
from tests.sim.worlds.machines import NUM_LAYERS, lane, machine
from tests.sim.worlds.random_profiles import profiles
from tests.sim.worlds.random_records import records
from tests.sim.worlds.random_schedules import schedules
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative

TOLERANCE_S = 1e-8
PARTS = ("layer", "lm_head", "draft_step", "draft_step_features", "draft_streams")


def tall(profile: Profile) -> Profile:
    """The same tables with room for the rows of any batch here, on lanes of one device."""

    def grown(table: LatencyTable | None) -> LatencyTable | None:
        if table is None:
            return None
        return table.model_copy(update={"rows": (*table.rows[:-1], 5000)})

    lanes = tuple(
        one.model_copy(
            update={name: grown(getattr(one, name)) for name in PARTS}
            | {"group": None, "draft_start": grown(one.draft_streams)}
            | {"exit": {layer: grown(table) for layer, table in one.exit.items()}}
            | {"heads": {name: grown(table) for name, table in one.heads.items()}}
            | {"streams": {name: grown(table) for name, table in one.streams.items()}}
        )
        for one in profile.lanes
    )
    return profile.model_copy(update={"lanes": lanes, "memory_pool_bytes_per_s": None})


@given(schedules(), profiles(), st.lists(records(), min_size=1, max_size=2), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_a_batch_is_what_playing_every_sequence_by_hand_comes_to(
    schedule: Schedule, profile: Profile, several: list[AcceptanceRecord], size: int
) -> None:
    profile = tall(profile)
    prompts = tuple(prompt for record in several for prompt in record.prompts)
    record = replace(several[0], prompts=prompts, max_new_tokens=30)
    found, by_hand = predict_batch(schedule, profile, record, batch_size=size), ByHand(schedule, profile, record, size)
    assert found.decode_s == pytest.approx(by_hand.decode_s(), abs=TOLERANCE_S)
    assert found.tpot_s * found.num_tokens == pytest.approx(by_hand.own_s, abs=TOLERANCE_S)
    assert (found.num_passes, found.mean_rows) == (by_hand.num_passes, by_hand.num_rows / by_hand.num_passes)


@given(profiles(), records(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.sampled_from([1.0, 30.0]))
@settings(max_examples=150, deadline=None)
def test_so_it_is_with_features_however_slowly_they_are_read(
    profile: Profile, record: AcceptanceRecord, width: int, size: int, num_streams: int, slower: float
) -> None:
    """Read by sequences without a window, and by those whose branches have not begun: long after the exit's message."""
    draft = tall(profile).lanes[1]
    assert draft.draft_step_features is not None
    seconds = tuple(tuple(slower * one for one in row) for row in draft.draft_step_features.seconds)
    slow = draft.model_copy(
        update={"draft_step_features": draft.draft_step_features.model_copy(update={"seconds": seconds})}
    )
    profile = profile.model_copy(update={"lanes": (tall(profile).lanes[0], slow), "memory_pool_bytes_per_s": None})
    schedule = mirror("exit", num_tokens=width, exit_top_k=3, exit_features=True, draft_streams=num_streams)
    found = predict_batch(schedule, profile, record, batch_size=size)
    assert found.decode_s == pytest.approx(ByHand(schedule, profile, record, size).decode_s(), abs=TOLERANCE_S)


@given(profiles(), st.integers(1, 4), st.floats(0, 1), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_so_it_is_with_drafters_of_blocks(profile: Profile, num_tokens: int, rate: float, size: int) -> None:
    record = Bernoulli(rate, texts=Texts(num_texts=3, num_tokens=20, prompt_length=2), blocks=("head",)).record
    schedule = block(num_tokens)
    found = predict_batch(schedule, tall(profile), record, batch_size=size)
    assert found.decode_s == pytest.approx(ByHand(schedule, tall(profile), record, size).decode_s(), abs=TOLERANCE_S)


@given(schedules(), profiles(contended=False), records())
@settings(max_examples=80, deadline=None)
def test_a_batch_of_one_is_a_sequence(schedule: Schedule, profile: Profile, record: AcceptanceRecord) -> None:
    """All but mirror, where a sequence alone would rather wait for its window than go on without one."""
    assume(not schedule.traits.overlaps)
    one, batch = predict(schedule, profile, record), predict_batch(schedule, profile, record, batch_size=1)
    assert batch.decode_s == pytest.approx(one.decode_s, abs=TOLERANCE_S)
    assert batch.tpot_s == pytest.approx(one.tpot_s, rel=1e-9)
    assert batch.mean_acceptance_length == one.mean_acceptance_length


@pytest.mark.parametrize("source", ["exit", "draft", "hybrid"])
@given(profiles(contended=False, paced=False), st.floats(0, 1), st.integers(1, 4), st.booleans(), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_so_it_is_with_branches_that_are_always_hit(
    source: str, profile: Profile, rate: float, width: int, of_exit: bool, num_streams: int
) -> None:
    """Of both sources the draft's or (`of_exit`) the exit's; of the exit with features or not."""
    record = Bernoulli(
        rate,
        texts=Texts(num_texts=2, num_tokens=20, prompt_length=2),
        feature_rates=rate,
        alternative_rates=(0.0, 0.0) if of_exit and source == "hybrid" else (1.0, 1.0),
        exit_coverage={4: (1.0, 1.0)},
        stream_rates=(rate, rate),
    )
    features = of_exit and source == "exit"
    top_k = {f"{one}_top_k": 2 for one in ("exit", "draft") if source in (one, "hybrid")}
    schedule = mirror(source, num_tokens=width, draft_streams=num_streams, exit_features=features, **top_k)
    found, alone = predict_batch(schedule, profile, record, batch_size=1), predict(schedule, profile, record)
    assert alone.reuse_rate == 1
    assert found.decode_s == pytest.approx(alone.decode_s, abs=TOLERANCE_S)


def test_equal_sequences_cost_no_more_than_one_where_rows_are_free() -> None:
    alone, together = (
        predict_batch(speculative(3), machine(), Bernoulli(1.0, texts=Texts(num_texts=8)), batch_size=size)
        for size in (1, 8)
    )
    assert together.tokens_per_s == pytest.approx(8 * alone.tokens_per_s)
    assert together.tpot_s == pytest.approx(alone.tpot_s)
    assert (alone.mean_rows, together.mean_rows) == (4, 32)


def test_a_sequence_without_a_branch_verifies_a_single_row() -> None:
    """Nothing is covered: after the first window no round has one, and all rounds but the first commit one token."""
    missing = Bernoulli(1.0, texts=Texts(num_texts=2, num_tokens=12), exit_coverage={4: (0.0,)})
    found = predict_batch(mirror("exit", num_tokens=3), machine(), missing, batch_size=2)
    assert found.num_passes == 1 + (12 - 4)
    assert found.mean_rows == (2 * 4 + 8 * 2) / 9


def rows_cost(per_row_s: float) -> Profile:
    """Passes that take 1 s and so much more for every row after the first eight: what a device gives away for free."""
    table = LatencyTable(
        rows=(1, 8, 2000), contexts=(0,), seconds=((0.1,), (0.1,), (0.1 + 1992 * per_row_s,)), source="by hand"
    )
    target = lane("target").model_copy(update={"layer": table, "lm_head": table})
    return machine(target, lane("draft", draft_step=0.01))


def test_larger_batches_want_shorter_windows_and_at_last_none() -> None:
    acceptance = Bernoulli(0.6, texts=Texts(num_texts=64, num_tokens=40))
    schedules_ = [AUTOREGRESSIVE, *(speculative(width) for width in (1, 2, 4, 7))]
    best = best_by_batch(schedules_, rows_cost(0.05), acceptance)
    windows = [best[size].schedule.num_speculative_tokens for size in (1, 2, 4, 8, 16, 32, 64)]
    assert windows == sorted(windows, reverse=True)
    assert windows[0] == 7
    assert windows[-1] == 0
    off = switch_off_at(best)
    assert off is not None
    assert [best[size].schedule.method == "autoregressive" for size in best] == [size >= off for size in best]
    assert switch_off_at(best_by_batch(schedules_, machine(), acceptance, batch_sizes=(1, 2, 8))) is None


def test_every_sequence_reads_its_own_cache() -> None:
    """A second of weights, and a hundredth for every cached token of each sequence: of the lowest context once more."""
    growing = LatencyTable(rows=(1, 2000), contexts=(0, 1000), seconds=((1.0, 11.0),) * 2, source="by hand")
    target = lane("target", lm_head=0.0).model_copy(update={"layer": growing})
    texts = Texts(num_texts=2, num_tokens=1, prompt_length=101)
    [short, long] = Bernoulli(0.0, texts=texts).record.prompts
    record = Bernoulli(0.0, texts=texts).record
    ragged = replace(record, prompts=(short, replace(long, prompt_length=301)))
    found = predict_batch(AUTOREGRESSIVE, machine(target), ragged, batch_size=2)
    assert found.decode_s == pytest.approx(NUM_LAYERS * (1 + 1.0 + 2.0))


PARTS_WITH_TRAFFIC = ("layer", "lm_head", "draft_step", "draft_start", "draft_streams")


def wanting(bytes_per_s: float, parts: Sequence[str] = PARTS_WITH_TRAFFIC, **fields: Any) -> Profile:
    """Two lanes of which each takes so much of a memory while it computes, however many rows there are."""

    def moved(table: LatencyTable) -> LatencyTable:
        return table.model_copy(update={"bytes_per_call": bytes_per_s * table.seconds[0][0]})

    plain = tall(machine(lane("target"), lane("draft", draft_step=7.0)))  # slow: a round ends within its steps
    lanes = tuple(
        one.model_copy(
            update={name: moved(getattr(one, name)) for name in parts}
            | {"exit": {layer: moved(table) for layer, table in one.exit.items()}}
        )
        for one in plain.lanes
    )
    return plain.model_copy(update={"lanes": lanes} | fields)


OVERLAPPING = {
    "exit": mirror("exit", num_tokens=3, exit_top_k=2),
    "draft": mirror("draft", num_tokens=3, draft_top_k=2),
    "both": mirror("hybrid", num_tokens=3, exit_top_k=2, draft_top_k=2),
    "features": mirror("exit", num_tokens=3, exit_top_k=2, exit_features=True),
    "streams": mirror("hybrid", num_tokens=3, exit_top_k=2, draft_top_k=2, draft_streams=1),
}


@pytest.mark.parametrize("schedule", OVERLAPPING.values(), ids=OVERLAPPING)
@pytest.mark.parametrize("size", [1, 3])
def test_half_of_a_memory_each_makes_both_lanes_twice_as_slow(schedule: Schedule, size: int) -> None:
    sure = {"alternative_rates": (0.2, 0.5), "exit_coverage": {4: (0.5, 0.7)}}
    texts = Texts(num_texts=6, num_tokens=20, prompt_length=2)
    record = Bernoulli(0.7, texts=texts, feature_rates=0.7, stream_rates=(0.5,), **sure).record
    halved = wanting(100, memory_pool_bytes_per_s=100)
    measured = Contention(lanes=("target", "draft"), slowdown=(2, 2), source="by hand")
    ample, alone, slowed = wanting(100, memory_pool_bytes_per_s=200), wanting(100), wanting(0, contention=(measured,))

    def decode_s(profile: Profile) -> float:
        return predict_batch(schedule, profile, record, batch_size=size).decode_s

    assert decode_s(halved) == decode_s(slowed) > decode_s(alone)
    assert decode_s(ample) == decode_s(alone)
    streams_alone = wanting(100, parts=PARTS_WITH_TRAFFIC[:-1], memory_pool_bytes_per_s=100)
    assert (decode_s(streams_alone) < decode_s(halved)) == (schedule.draft_streams > 0)


@pytest.mark.parametrize("size", [0, 65])
def test_batches_are_of_1_to_64(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"batch_size is {size}: it is 1\.\.64"):
        predict_batch(AUTOREGRESSIVE, machine(), Bernoulli(0.5), batch_size=size)


def test_rows_that_were_not_measured_are_refused() -> None:
    with pytest.raises(OutOfRangeError, match="rows"):
        predict_batch(speculative(7), machine(), Bernoulli(0.5, texts=Texts(num_texts=64)), batch_size=64)


def test_batches_need_texts() -> None:
    with pytest.raises(ConfigError, match="batches are played along texts"):
        predict_batch(AUTOREGRESSIVE, machine(), DrawnAcceptance(0.5, hit_rate=0, num_tokens=5), batch_size=2)


def test_the_source_says_that_nobody_runs_batches_yet() -> None:
    found = predict_batch(AUTOREGRESSIVE, machine(), Bernoulli(0.5), batch_size=2)
    assert found.source.startswith("assumed acceptance 0.5 at every place")
    assert found.source.endswith("batches are simulated only")
