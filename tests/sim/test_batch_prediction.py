"""Batches in the simulated world: their rule, the sequence alone that a batch of one is, and what they are for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import ConfigError, OutOfRangeError
from decoding.schedule import Schedule
from hwprofiles.lane_profile import DECODING_PARTS, LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import head_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import load_platform
from hwprofiles.profile import BYTES_PER_CANDIDATE, Contention, LinkProfile, Profile
from hwprofiles.quantity import Quantity
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import AssumedTree, Texts
from sim.acceptance.replay import Acceptance
from sim.batch_prediction import BatchPrediction, BatchPredictor, best_by_batch, switch_off_at
from sim.derived.derived_profile import Demand, derived_profile
from sim.derived.device_speed import DeviceSpeed
from sim.derived.roofline import RooflineCost, StoredModel
from sim.evaluator import predict
from tests.sim.playing import by_rows
from tests.sim.worlds.at_random import profiles, records, schedules
from tests.sim.worlds.machines import NUM_LAYERS, lane, machine
from tests.sim.worlds.records import TREES
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

TOLERANCE_S = 1e-8


def predict_batch(schedule: Schedule, profile: Profile, record: Acceptance, *, batch_size: int) -> BatchPrediction:
    """What a schedule does with so many sequences at once."""
    return BatchPredictor(profile, record).predict(schedule, batch_size)


def with_tables(profile: Profile, change: Callable[[LatencyTable], LatencyTable]) -> tuple[LaneProfile, ...]:
    """The lanes of a profile, with other tables."""
    return tuple(one.changed(dict.fromkeys(DECODING_PARTS), lambda table, _: change(table)) for one in profile.lanes)


def tall(profile: Profile) -> Profile:
    """The same tables with room for the rows of any batch here, on lanes of one device."""

    def grown(table: LatencyTable) -> LatencyTable:
        return table.model_copy(update={"rows": (*table.rows[:-1], 5000)})

    lanes = [one.model_copy(update={"group": None}) for one in with_tables(profile, grown)]
    return profile.model_copy(update={"lanes": tuple(lanes), "memory_pool_bytes_per_s": None})


@given(schedules(), profiles(), records())
@settings(max_examples=60, deadline=None)
def test_a_batch_of_one_is_a_sequence(schedule, profile, record):
    one, batch = predict(schedule, tall(profile), record), predict_batch(schedule, tall(profile), record, batch_size=1)
    assert batch.decode_s == pytest.approx(one.decode_s, abs=TOLERANCE_S)
    assert batch.tpot_s == pytest.approx(one.tpot_s, rel=1e-9)
    assert batch.num_passes == one.num_rounds


@given(schedules(), profiles(contended=False), records(), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_equal_sequences_go_through_the_rounds_of_one(schedule, profile, record, size):
    """On lanes where rows, contexts and messages are free; so they all hit, or all draft afresh."""
    free = without_rows(tall(profile))
    equal = replace(record, prompts=record.prompts[:1] * size)
    alone = predict(schedule, free, replace(record, prompts=record.prompts[:1]))
    together = predict_batch(schedule, free, equal, batch_size=size)
    assert together.decode_s == pytest.approx(alone.decode_s, abs=TOLERANCE_S)
    assert together.num_passes == alone.num_rounds


def without_rows(profile: Profile) -> Profile:
    """The same machine, with the first time of every table for any rows and context, and no links."""

    def flat(table: LatencyTable) -> LatencyTable:
        first = ((table.seconds[0][0],),)
        return table.model_copy(update={"rows": (1, 5000), "contexts": (0,), "seconds": first * 2, "num_bytes": ()})

    return profile.model_copy(update={"lanes": with_tables(profile, flat), "links": ()})


LOCK_STEP = {  # as an independent recurrence over whole rounds had it, to 1e-10
    ("autoregressive", 1): 149.71938309902285,
    ("autoregressive", 4): 545.2528160750085,
    ("autoregressive", 32): 3639.542800633383,
    ("speculative", 1): 201.38675037536987,
    ("speculative", 4): 743.3164884341911,
    ("speculative", 32): 5453.6989455094035,
}


@pytest.mark.parametrize(("method", "size"), LOCK_STEP)
def test_plain_and_synchronous_decoding_go_in_lock_step(method, size):
    models = {"target": "qwen3-14b", "draft": "qwen3-0.6b"}
    stored = {role: StoredModel(shape=model_shape(name), weights="bf16") for role, name in models.items()}
    platform = load_platform("h200")  # as it was when that was worked out: without a law of its kernels, or a host
    efficiency = Quantity(value=0.896, status="measured", by="this project", source="a copy")
    then = {"memory_efficiency": efficiency, "kernel_start_s": None, "unhidden_share": None}
    then["engine_step_s"] = Quantity(value=1e-12, status="guessed", source="none")
    devices = {**platform.devices, "gpu": platform.devices["gpu"].model_copy(update=then)}
    priced = with_overrides(platform.model_copy(update={"devices": devices}), {"gpu.growth_per_row": 0.03})
    known = derived_profile(priced, Demand(**stored, lanes=["gpu"], exits=()))
    texts = Texts(num_texts=32, num_tokens=64, prompt_length=500)
    drafts = {"draft_lane": "gpu", "drafter": "qwen3-0.6b", "num_speculative_tokens": 3}
    schedule = Schedule(method=method, target_lane="gpu", **(drafts if method == "speculative" else {}))
    record = Bernoulli(0.6, texts=texts, alternative_rates=(0.2, 0.3), exit_coverage={20: (0.4, 0.5)}).record
    found = BatchPredictor(known.profile, record, costs=known.costs).predict(schedule, size)
    assert found.tokens_per_s == pytest.approx(LOCK_STEP[method, size], rel=1e-9)


def test_the_rows_of_all_are_one_call_and_one_message_carries_their_windows():
    """A second for every row of the target, half a one for every step of the draft, one byte a second on the link."""
    target = lane("target", layer=0.0).model_copy(update={"lm_head": by_rows(*map(float, range(1, 33)))})
    link = LinkProfile(lanes=("target", "draft"), latency_s=3.0, bytes_per_s=1.0, source="by hand")
    profile = machine(target, lane("draft", draft_step=0.5), links=(link,))
    texts = Texts(num_texts=2, num_tokens=3, prompt_length=2)
    found = predict_batch(speculative(2), profile, Bernoulli(1.0, texts=texts), batch_size=2)
    rollout_s, window_s = 2 * 0.5, 3 + 2 * 2 * BYTES_PER_CANDIDATE
    assert found.decode_s == pytest.approx(rollout_s + window_s + 2 * 3)
    assert (found.num_passes, found.mean_rows) == (1, 6)


def test_a_batch_stays_full_while_its_slowest_sequence_goes_on():
    """Of six tokens three come in a round of the first text and one in a round of the second: two rounds and six."""
    texts = Texts(num_texts=1, num_tokens=6)
    quick, slow = (Bernoulli(rate, texts=texts).record for rate in (1.0, 0.0))
    profile = machine(lane("target", layer=0.0, lm_head=1.0), lane("draft", draft_step=0.0))
    record = replace(quick, prompts=(*quick.prompts, *slow.prompts))
    found = predict_batch(speculative(2), profile, record, batch_size=2)
    assert found.tpot_s == pytest.approx((2 + 6) / 12)
    assert found.tokens_per_s == pytest.approx(2 * 12 / (2 + 6))
    assert (found.num_passes, found.decode_s, found.mean_rows) == (6, pytest.approx(6), 6)


def test_a_sequence_without_a_branch_verifies_a_single_row_while_another_one_goes_on():
    """The first text's outcomes are covered and the second one's are not: it goes on token by token."""
    texts = Texts(num_texts=1, num_tokens=12)
    [sure] = Bernoulli(1.0, texts=texts, exit_coverage={4: (1.0,)}).record.prompts
    missing = Bernoulli(1.0, texts=texts, exit_coverage={4: (0.0,)}).record
    both = replace(missing, prompts=(sure, *missing.prompts))
    found = predict_batch(mirror("exit", num_tokens=3), machine(), both, batch_size=2)
    hits, misses = 3, 2  # rounds of four tokens, then rounds of one of the second text, until nobody keeps it waiting
    assert found.mean_rows * found.num_passes >= hits * 4 + 4 + misses
    assert found.num_passes > hits
    assert found.num_tokens == 24


def test_a_sequence_that_takes_a_place_has_no_branch_yet():
    """All outcomes are covered; after three rounds of both texts the shorter one is followed by its own beginning."""
    sure = {"exit_coverage": {4: (1.0,)}}
    short, long = (Bernoulli(1.0, texts=Texts(num_texts=1, num_tokens=count), **sure).record for count in (12, 24))
    both = replace(long, prompts=(*short.prompts, *long.prompts))
    found = predict_batch(mirror("exit", num_tokens=3), machine(), both, batch_size=2)
    assert (found.num_passes, found.num_tokens) == (6, 36)
    assert found.mean_rows * 6 == pytest.approx(3 * (4 + 4) + (4 + 1) + 2 * (4 + 4))


def test_where_nobody_has_a_branch_all_draft_afresh():
    missing = Bernoulli(1.0, texts=Texts(num_texts=2, num_tokens=12), exit_coverage={4: (0.0,)})
    found = predict_batch(mirror("exit", num_tokens=3), machine(), missing, batch_size=2)
    assert (found.num_passes, found.mean_rows) == (3, 2 * 4)


def rows_cost(per_row_s: float) -> Profile:
    """Passes that take 1 s and so much more for every row after the first eight: what a device gives away for free."""
    table = LatencyTable(
        rows=(1, 8, 2000), contexts=(0,), seconds=((0.1,), (0.1,), (0.1 + 1992 * per_row_s,)), source="by hand"
    )
    target = lane("target").model_copy(update={"layer": table, "lm_head": table})
    return machine(target, lane("draft", draft_step=0.01))


def test_larger_batches_want_shorter_windows_and_at_last_none():
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


def test_every_sequence_reads_its_own_cache():
    """A second of weights, and a hundredth for every cached token of each sequence; measured from 50 tokens on."""
    growing = LatencyTable(rows=(1, 2000), contexts=(50, 1000), seconds=((1.5, 11.0),) * 2, source="by hand")
    target = lane("target", lm_head=0.0).model_copy(update={"layer": growing})
    texts = Texts(num_texts=2, num_tokens=1, prompt_length=101)
    [short, long] = Bernoulli(0.0, texts=texts).record.prompts
    record = Bernoulli(0.0, texts=texts).record
    ragged = replace(record, prompts=(short, replace(long, prompt_length=301)))
    found = predict_batch(AUTOREGRESSIVE, machine(target), ragged, batch_size=2)
    assert found.decode_s == pytest.approx(NUM_LAYERS * (1 + 1.0 + 3.0))


def wanting(bytes_per_s: float, **fields: Any) -> Profile:
    """Two lanes of which each takes so much of a memory while it computes, however many rows there are."""

    def moved(table: LatencyTable) -> LatencyTable:
        return table.model_copy(update={"bytes_per_call": bytes_per_s * table.seconds[0][0]})

    plain = tall(machine(lane("target"), lane("draft", draft_step=7.0)))  # slow: a round ends within its steps
    return plain.model_copy(update={"lanes": with_tables(plain, moved)} | fields)


OVERLAPPING = {
    "exit": mirror("exit", num_tokens=3, exit_top_k=2),
    "draft": mirror("draft", num_tokens=3, draft_top_k=2),
    "both": mirror("hybrid", num_tokens=3, exit_top_k=2, draft_top_k=2),
    "features": mirror("exit", num_tokens=3, exit_top_k=2, exit_features=True),
    "streams": mirror("hybrid", num_tokens=3, exit_top_k=2, draft_top_k=2, draft_streams=1),
}


@pytest.mark.parametrize("schedule", OVERLAPPING.values(), ids=OVERLAPPING)
@pytest.mark.parametrize("size", [1, 3])
def test_half_of_a_memory_each_makes_both_lanes_twice_as_slow(schedule, size):
    sure = {"alternative_rates": (0.2, 0.5), "exit_coverage": {4: (0.5, 0.7)}}
    texts = Texts(num_texts=6, num_tokens=20, prompt_length=2)
    record = Bernoulli(0.7, texts=texts, feature_rates=0.7, stream_rates=(0.5,), **sure).record
    halved = wanting(100, memory_pool_bytes_per_s=100)
    measured = Contention(lanes=("target", "draft"), slowdown=(2, 2), source="by hand")
    ample, alone, slowed = wanting(100, memory_pool_bytes_per_s=200), wanting(100), wanting(0, contention=(measured,))

    def decode_s(profile):
        return predict_batch(schedule, profile, record, batch_size=size).decode_s

    assert decode_s(halved) == decode_s(slowed) > decode_s(alone)
    assert decode_s(ample) == decode_s(alone)


@pytest.mark.parametrize("kind", ["exit", "draft", "both", "streams"])
@pytest.mark.parametrize("size", [1, 3])
def test_lanes_that_do_nothing_but_read_are_twice_as_slow_together_in_any_context_and_batch(kind, size):
    """Each reads as fast as their memory does, experts of a mixture too."""
    models = {"target": "qwen3-30b-a3b", "draft": "qwen3-0.6b"}
    stored = {role: StoredModel(shape=model_shape(name), weights="bf16") for role, name in models.items()}
    cost = RooflineCost(device=DeviceSpeed(name="any", bytes_per_s=1e11, flops=1e30), exits=(4,), **stored)
    sure = {"alternative_rates": (0.2, 0.5), "exit_coverage": {4: (0.5, 0.7)}}
    texts = Texts(num_texts=3, num_tokens=12, prompt_length=20000)
    record = Bernoulli(0.7, texts=texts, stream_rates=(0.5,), **sure).record
    measured = Contention(lanes=("target", "draft"), slowdown=(2, 2), source="by hand")

    def decode_s(**fields):
        predictor = BatchPredictor(machine(**fields), record, costs={"target": cost, "draft": cost})
        return predictor.predict(OVERLAPPING[kind], size).decode_s

    assert decode_s(memory_pool_bytes_per_s=1e11) == pytest.approx(decode_s(contention=(measured,)), rel=1e-6)


@pytest.mark.parametrize("schedule", [speculative(3), OVERLAPPING["both"], tree(TREES[0], 7, draft_lane="target")])
def test_a_sequence_has_its_own_positions_whatever_rows_a_batch_and_a_tree_have(schedule):
    """The last round begins after 110 tokens, and a window of three and its first token end at position 114."""
    shape, head = model_shape("qwen3-0.6b"), "medusa" if schedule.is_tree else None
    drafts = head_shape(head, shape) if head else shape
    texts = Texts(num_texts=64, num_tokens=12, prompt_length=100)
    trees = (AssumedTree(method="medusa", drafter="head", depth=3),)
    sure = {"alternative_rates": (0.2, 0.5), "exit_coverage": {4: (0.5, 0.7)}}
    record = Bernoulli(0.7, texts=texts, trees=trees, **sure)

    def predictor(most: int) -> BatchPredictor:
        target, draft = (one.model_copy(update={"max_position": most}) for one in (shape, drafts))
        cost = RooflineCost(
            device=DeviceSpeed(name="any", bytes_per_s=1e11, flops=1e13),
            exits=(4,),
            target=StoredModel(shape=target, weights="bf16"),
            draft=StoredModel(shape=draft, weights="bf16", head=head),
        )
        return BatchPredictor(machine(), record, costs={"target": cost, "draft": cost})

    assert predictor(114).predict(schedule, 64).mean_rows > 114
    with pytest.raises(OutOfRangeError, match="114 positions, and 113 there are"):
        predictor(113).predict(schedule, 64)


@pytest.mark.parametrize("size", [0, 257])
def test_batches_are_of_1_to_256(size):
    with pytest.raises(ConfigError, match=rf"batch_size is {size}: it is 1\.\.256"):
        predict_batch(AUTOREGRESSIVE, machine(), Bernoulli(0.5), batch_size=size)


def test_rows_that_were_not_measured_are_refused():
    with pytest.raises(OutOfRangeError, match="rows"):
        predict_batch(speculative(7), machine(), Bernoulli(0.5, texts=Texts(num_texts=64)), batch_size=64)
