from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.cost_model import Part, traffic
from costs.durations import DurationTables
from costs.round_plan import RoundPlan, RoundShape
from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.curves.row_prices import RowPrices
from hwprofiles.model_shape import model_shape
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet
from sim.derived.device_speed import KERNELS_PER_LAYER, DeviceSpeed, device_speed
from sim.derived.roofline import RooflineCost, StoredModel
from sim.events.round_costs import RoundCosts
from tests.sim.worlds.machines import NUM_LAYERS, machine
from tests.sim.worlds.schedules import AUTOREGRESSIVE

TARGET = StoredModel(shape=model_shape("qwen3-14b"), weights="bf16")
DRAFT = StoredModel(shape=model_shape("qwen3-0.6b"), weights="int4")
SLOW_MEMORY = DeviceSpeed(name="gpu", bytes_per_s=1e11, flops=1e18)
SLOW_KERNELS = DeviceSpeed(name="gpu", bytes_per_s=1e18, flops=1e18, kernel_s=1e-3)


def cost(device=SLOW_MEMORY, **fields):
    return RooflineCost(device=device, target=TARGET, draft=DRAFT, exits=(20,), **fields)


def at(cost, kind, rows, context, exit_layer=None):
    return float(cost.seconds(Part(kind, exit_layer), rows, np.array([float(context)]))[0])


def layer_bytes(model, rows, context):
    """The traffic of one layer: weights, the cache of a sequence, and states between matrices."""
    shape = model.shape
    of_rows = shape.layer_weight_bytes(model.weights, rows) + shape.layer_activation_bytes(rows)
    return of_rows + shape.layer_kv_bytes(rows, context, model.cache_bits)


def test_one_row_of_a_layer_reads_weights_cache_and_states_at_full_speed():
    shape = TARGET.shape
    kv = 513 * 2 * 8 * 128 * 2
    num_bytes = 2 * shape.layer_parameters + kv + shape.layer_activation_bytes(1)
    assert at(cost(), "layer", 1, 512) == pytest.approx(num_bytes / 1e11, abs=1e-15)


def test_the_cache_is_read_at_a_share_of_the_bandwidth_and_weights_are_not():
    slow = cost(replace(SLOW_MEMORY, cache_efficiency=0.25))
    assert at(slow, "lm_head", 1, 4000) == at(cost(), "lm_head", 1, 4000)
    kv = 4000 * 2 * 8 * 128 * 2  # the new token's own count as states
    assert at(slow, "layer", 1, 4000) == pytest.approx(at(cost(), "layer", 1, 4000) + 3 * kv / 1e11, rel=1e-12)
    assert at(slow.at_peak(1e11), "layer", 1, 4000) == at(cost(), "layer", 1, 4000), "a bound for any kernels"


def test_states_of_linear_attention_are_read_like_weights():
    hybrid = StoredModel(shape=model_shape("qwen3.6-35b-a3b"), weights="bf16")
    fast, slow = (
        RooflineCost(device=replace(SLOW_MEMORY, cache_efficiency=share), target=hybrid) for share in (1.0, 0.1)
    )
    assert at(slow, "layer", 1, 0) == pytest.approx(at(fast, "layer", 1, 0), rel=1e-12)
    assert at(slow, "layer", 1, 4000) > at(fast, "layer", 1, 4000)


def test_rows_that_share_what_is_read_of_a_long_cache_still_slow_the_weights():
    grows = replace(SLOW_MEMORY, growth_per_row=0.1)
    once = replace(grows, reads_cache_once=True)
    short, long = (at(cost(grows), "layer", 8, tokens) - at(cost(once), "layer", 8, tokens) for tokens in (512, 10_512))
    assert short == 0, "as in the short passes that growth is from"
    assert long == pytest.approx(0.7 * 10_000 * 2 * 8 * 128 * 2 / 1e11, rel=1e-9)


def test_the_error_of_a_pass_is_more_and_more_that_of_reading_the_cache():
    told = Quantity(value=0.5, span=(0.25, 1.0), status="measured", by="us", source="made up")
    sheet = DeviceSheet(name="a CPU", kind="cpu", bf16_flops=Quantity(value=1e13, status="guessed", source="made up"))
    pool = Quantity(value=1e11, status="guessed", source="made up")
    unsure = device_speed("cpu", sheet.model_copy(update={"cache_efficiency": told}), pool)
    short, long = (cost(unsure, context=tokens).facts(Part("layer")).relative_error for tokens in (100, 40_000))
    assert short < 0.15
    assert long > 2 * short


def test_by_a_measured_law_start_reading_and_the_unhidden_share_of_computing_add_up():
    law = DeviceSpeed(name="gpu", bytes_per_s=1e12, flops=5e13, kernel_s=4e-6, unhidden_share=0.5)
    num_bytes, flops = layer_bytes(TARGET, 4, 512), TARGET.shape.layer_flops(4, 512)
    expected_s = num_bytes / 1e12 + flops / 1e14 + KERNELS_PER_LAYER * 4e-6
    assert at(cost(law), "layer", 4, 512) == pytest.approx(expected_s, rel=1e-12)
    shared_s = (num_bytes / 1e12 + flops / 1e14) / 4 + KERNELS_PER_LAYER * 4e-6
    assert at(cost(law, num_devices=4), "layer", 4, 512) == pytest.approx(shared_s, rel=1e-12)
    computing_s = TARGET.shape.layer_flops(2000, 0) / 5e13
    assert at(cost(law), "layer", 2000, 0) == pytest.approx(computing_s + KERNELS_PER_LAYER * 4e-6, rel=1e-12)


def test_kernels_that_queue_count_where_they_take_longer_and_others_are_added():
    assert at(cost(SLOW_KERNELS), "layer", 1, 0) == pytest.approx(KERNELS_PER_LAYER * 1e-3, abs=1e-12)
    alone = at(cost(), "layer", 1, 0)
    in_turn = replace(SLOW_MEMORY, kernel_s=1e-3, queues_kernels=False)
    assert at(cost(in_turn), "layer", 1, 0) == pytest.approx(alone + KERNELS_PER_LAYER * 1e-3, abs=1e-12)


def test_a_public_curve_of_whole_passes_holds_for_whole_passes():
    """Starts grow with reading, so that the ratio of a pass is the curve's, and not less for the starts in it."""
    prices = RowPrices(rows=(1, 2, 4), ratios=(1.0, 1.2, 1.5), errors=(0.0, 0.1, 0.1), step="device", source="a curve")
    priced = replace(SLOW_MEMORY, prices=prices, kernel_s=1e-3, queues_kernels=False)
    one, four = (at(cost(priced), "layer", rows, 0) for rows in (1, 4))
    assert four / one == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize(("name", "width"), [("deepseek-v3", 128 + 64 + 128), ("glm-5.2", 2 * 512 + 64)])
def test_a_prompt_scores_widened_keys_and_values_unless_an_indexer_chooses_what_is_read(name, width):
    """As engines do (vLLM's docs of MLA); decoding scores what is kept, which is wider."""
    shape, computing = model_shape(name), DeviceSpeed(name="gpu", bytes_per_s=1e18, flops=1e12)
    here = RooflineCost(device=computing, target=StoredModel(shape=shape, weights="fp8"))
    one, two = (at(here, "prefill", rows, 0) for rows in (1000, 2000))
    per_row = (two - 2 * one) / 1e3  # twice as many rows read 500 more keys each
    assert per_row == pytest.approx(shape.num_layers * 2 * shape.num_heads * width * 1000 / 1e12, rel=1e-6)


def test_an_exit_is_a_head_and_a_drafts_step_is_all_of_it():
    here = cost()
    assert at(here, "exit", 3, 0, exit_layer=20) == at(here, "lm_head", 3, 0)
    shape = DRAFT.shape
    num_bytes = 28 * layer_bytes(DRAFT, 1, 100) + shape.head_bytes("int4")
    assert at(here, "draft_step", 1, 100) == pytest.approx(num_bytes / 1e11, abs=1e-15)


def test_a_member_of_a_group_has_its_share_of_the_work():
    group = cost(num_devices=4)
    assert at(group, "layer", 2, 0) == pytest.approx(at(cost(), "layer", 2, 0) / 4, abs=1e-15)
    assert at(group, "lm_head", 2, 0) == pytest.approx(at(cost(), "lm_head", 2, 0) / 4, abs=1e-15)


def attention(model, kind, rows, context):
    """Bytes and FLOPs of a part for the cache of one sequence."""
    shape, num_layers = model.shape, {"layer": 1, "lm_head": 0}.get(kind, model.shape.num_layers)
    return tuple(num_layers * float(of(rows, float(context))) for of in (shape.layer_kv_bytes, shape.mixing_flops))


def test_members_of_a_group_read_copies_of_what_they_cannot_share_out():
    whole, group = (
        RooflineCost(device=SLOW_MEMORY, target=replace(TARGET, shape=model_shape("deepseek-v3")), num_devices=count)
        for count in (1, 8)
    )
    read = [float(one.own(Part("layer"), 2, np.array([3e4])).num_bytes[0]) for one in (whole, group)]
    assert read[0] == read[1] == (3e4 + 2) * (512 + 64) * 2
    assert group.shared(Part("layer"), 2).num_bytes == whole.shared(Part("layer"), 2).num_bytes / 8
    own_s = float(group.own(Part("layer"), 2, np.array([3e4])).reading_s[0])
    assert own_s == pytest.approx(read[1] / 1e11)


def together(cost, kind, rows, contexts):
    """Seconds of a call over so many rows of each sequence, at its own context."""
    tables = DurationTables(machine(), range(max(contexts) + 1), {"target": cost})
    costs = RoundCosts(AUTOREGRESSIVE, RoundPlan.of(AUTOREGRESSIVE, RoundShape(0), NUM_LAYERS), tables)
    places = {count: [at for at, own in zip(contexts, rows, strict=True) if own == count] for count in rows}
    return costs._call("target", Part(kind), sum(rows), places)[0]


def test_sequences_share_a_passs_weights_and_each_reads_its_own_cache():
    one = together(cost(), "layer", [3], [500])
    assert one == at(cost(), "layer", 3, 500)
    cached = 2 * 8 * 128 * 2
    num_bytes = layer_bytes(TARGET, 4, 0) + (500 + 9000) * cached
    assert together(cost(), "layer", [3, 1], [500, 9000]) == pytest.approx(num_bytes / 1e11, rel=1e-12)
    of_states = replace(TARGET, shape=model_shape("qwen3.5-27b"))
    hybrid, state_bytes = RooflineCost(device=SLOW_MEMORY, target=of_states), of_states.shape.layer_kv_bytes(1, 0.0)
    weights = hybrid.shared(Part("layer"), 2).num_bytes
    assert together(hybrid, "layer", [1, 1], [0, 0]) == pytest.approx((weights + 2 * state_bytes) / 1e11, rel=1e-12)


def test_caches_that_hide_behind_starts_one_by_one_do_not_hide_together():
    """Kernels are started ahead in 8 ms; weights and one cache are read in less, and those of 64 sequences are not."""
    device = DeviceSpeed(name="gpu", bytes_per_s=1e11, flops=1e18, kernel_s=1e-3)
    assert at(cost(device), "layer", 1, 9000) == KERNELS_PER_LAYER * 1e-3
    assert together(cost(device), "layer", [1], [9000]) == KERNELS_PER_LAYER * 1e-3
    assert at(cost(SLOW_MEMORY), "layer", 1, 9000) < KERNELS_PER_LAYER * 1e-3
    num_bytes = layer_bytes(TARGET, 64, 0) + 64 * 9000 * 2 * 8 * 128 * 2
    assert together(cost(device), "layer", [1] * 64, [9000] * 64) == pytest.approx(num_bytes / 1e11, rel=1e-12)


def test_caches_are_read_beside_the_matrices_of_a_batch_that_computes():
    """Matrices of 400 rows compute for longer than they read; attention is a kernel of its own, but for one cache."""
    computing = replace(SLOW_MEMORY, flops=1e12)
    matrices_s = TARGET.shape.matrix_flops(400) / 1e12
    caches_s = 399 * TARGET.shape.layer_kv_bytes(1, 500) / 1e11
    attention_s = TARGET.shape.mixing_flops(1, 9000.0) / 1e12
    found_s = together(cost(computing), "layer", [1] * 400, [500] * 399 + [9000])
    assert found_s == pytest.approx(matrices_s + attention_s + caches_s, rel=1e-12)


def test_attention_that_computes_behind_weights_alone_computes_after_them_in_a_batch():
    """Compressed keys are scored by 128 heads: two rows compute for longer than they read, and less than weights do."""
    latent = StoredModel(shape=model_shape("deepseek-v3"), weights="fp8")
    here = RooflineCost(device=replace(SLOW_MEMORY, flops=1e13), target=latent)
    num_bytes, flops = attention(latent, "layer", 2, 8000)
    weights_s = latent.shared_work("layer", 2).num_bytes / 1e11
    assert 1.5 * num_bytes / 1e11 < flops / 1e13 < weights_s / 5
    assert at(here, "layer", 2, 8000) == pytest.approx(weights_s + num_bytes / 1e11, rel=1e-12)
    weights_s = latent.shared_work("layer", 64).num_bytes / 1e11
    expected_s = weights_s + num_bytes / 1e11 + 31 * flops / 1e13
    assert together(here, "layer", [2] * 32, [8000] * 32) == pytest.approx(expected_s, rel=1e-12)


def test_caches_are_read_as_fast_as_for_their_sequences_rows_and_weights_as_for_all():
    """A row more slows the reading of weights by a tenth; each cache is read for a single row."""
    contexts = [500, 9000, 9000]
    slowed = cost(replace(SLOW_MEMORY, growth_per_row=0.1))
    caches_s = sum(TARGET.shape.layer_kv_bytes(1, context) for context in contexts) / 1e11
    weights_s = slowed.shared(Part("layer"), 3).num_bytes * 1.2 / 1e11
    assert together(slowed, "layer", [1] * 3, contexts) == pytest.approx(weights_s + caches_s, rel=1e-12)


def test_a_member_of_a_group_reads_its_share_of_every_cache():
    contexts = [500, 9000, 9000]
    shared_s = together(cost(num_devices=4), "layer", [1] * 3, contexts)
    assert shared_s == pytest.approx(together(cost(), "layer", [1] * 3, contexts) / 4, rel=1e-12)


STATIC = DeviceSpeed(
    name="npu", bytes_per_s=1e11, flops=1e13, row_buckets=(1, 8, 64), context_step=256, max_prompt=1024
)


def test_static_shapes_cost_what_their_bucket_costs():
    here = cost(STATIC)
    assert here.shared(Part("draft_step"), 2) == here.shared(Part("draft_step"), 8)
    keys_s = (attention(DRAFT, "draft_step", 8, 256)[0] - attention(DRAFT, "draft_step", 2, 256)[0]) / 1e11
    assert at(here, "draft_step", 2, 100) == pytest.approx(at(here, "draft_step", 8, 256) - keys_s, rel=1e-12)
    assert at(here, "draft_step", 2, 100) > at(here, "draft_step", 1, 100)
    assert at(here, "draft_prefill", 300, 0) == at(here, "draft_prefill", 512, 0)
    assert "at most 64 rows" in here.missing(Part("draft_step"), 65, np.zeros(1))
    assert "prompts of at most 1024" in here.missing(Part("prefill"), 1025, np.zeros(1))


def test_rows_that_pad_a_graph_write_no_states_and_no_batch_pays_for_them_again():
    """A state is written for every row, so that engines can go back to it: to one that is a token's."""
    hybrid, shape = StoredModel(shape=model_shape("qwen3.5-27b"), weights="int8"), model_shape("qwen3.5-27b")
    wide = RooflineCost(device=replace(STATIC, flops=1e18, row_buckets=(32,), context_step=1), target=hybrid)
    weights_s = hybrid.shared_work("layer", 32).num_bytes / 1e11
    for rows in (1, 5):
        expected_s = weights_s + shape.layer_kv_bytes(rows, 100) / 1e11
        assert at(wide, "layer", rows, 100) == pytest.approx(expected_s, rel=1e-12)
    expected_s = weights_s + 16 * shape.layer_kv_bytes(1, 100) / 1e11
    assert together(wide, "layer", [1] * 16, [100] * 16) == pytest.approx(expected_s, rel=1e-12)


def test_a_graph_of_one_row_is_run_once_for_every_row_and_dispatched_each_time():
    single = cost(replace(STATIC, row_buckets=(1,), graph_s=1e-3))
    one_s = at(single, "draft_step", 1, 100)
    assert at(single, "draft_step", 3, 100) == pytest.approx(3 * one_s + 2 * 1e-3, abs=1e-12)
    both_s = together(single, "draft_step", [2, 1], [100, 3000])
    of_each = 2 * one_s + at(single, "draft_step", 1, 3000)
    assert both_s == pytest.approx(of_each + 2 * 1e-3, abs=1e-12)
    assert at(single, "draft_prefill", 300, 0) == at(cost(STATIC), "draft_prefill", 300, 0)
    assert single.missing(Part("draft_step"), 65, np.zeros(1)) is None


def test_what_a_lane_does_not_have_is_said_and_refused():
    here = RooflineCost(device=SLOW_MEMORY, draft=DRAFT)
    assert here.missing(Part("layer"), 1, np.zeros(1)) == "lane 'gpu' has no layer"
    assert "exit after layer 21" in cost().missing(Part("exit", 21), 1, np.zeros(1))
    assert "has 40960" in here.missing(Part("draft_step"), 1, np.array([40960.0]))
    with pytest.raises(ProfileError):
        here.facts(Part("layer"))
    with pytest.raises(OutOfRangeError):
        here.seconds(Part("layer"), 1, np.zeros(1))


def test_facts_name_model_and_device_and_traffic_is_that_of_one_member():
    group, contexts = cost(num_devices=4), np.array([0.0, 30000.0])
    assert group.facts(Part("layer")).source == "roofline of Qwen3-14B in bf16 on gpu"
    expected = [layer_bytes(TARGET, 3, context) / 4 for context in contexts]
    assert traffic(group, Part("layer"), 3, contexts) == pytest.approx(expected)


def test_products_of_eight_bits_are_computed_faster_in_layers_alone():
    """An `lm_head` stays in 16 bits, as keys and values do, and so does a draft that is."""
    eight, sixteen = (StoredModel(shape=TARGET.shape, weights=weights) for weights in ("fp8", "bf16"))
    device = replace(SLOW_MEMORY, bytes_per_s=1e15, flops=1e12, times_flops={"fp8": 2.0})
    here = RooflineCost(device=device, target=eight, draft=sixteen)
    rows, context = 64, 1000
    attention_s = TARGET.shape.mixing_flops(rows, context) / 1e12
    assert at(here, "layer", rows, context) == pytest.approx(TARGET.shape.matrix_flops(rows) / 2e12 + attention_s)
    assert at(here, "lm_head", rows, context) == pytest.approx(TARGET.shape.head_flops(rows) / 1e12)
    half = RooflineCost(device=replace(device, times_flops={}), target=eight, draft=sixteen)
    assert at(here, "draft_step", rows, context) == at(half, "draft_step", rows, context)


devices = st.builds(
    DeviceSpeed,
    name=st.just("gpu"),
    bytes_per_s=st.floats(1e9, 1e13),
    flops=st.floats(1e11, 1e16),
    kernel_s=st.floats(0, 1e-4),
    queues_kernels=st.booleans(),
    unhidden_share=st.none() | st.floats(0.1, 1.0),
    growth_per_row=st.floats(0, 1),
)
parts = st.sampled_from(["layer", "lm_head", "draft_step"])


@given(devices, parts, st.integers(1, 64), st.integers(0, 4096), st.floats(1, 100))
def test_more_bandwidth_more_flops_and_quicker_dispatch_never_slow_anything(device, kind, rows, context, factor):
    here = at(cost(device), kind, rows, context)
    assert at(cost(replace(device, bytes_per_s=device.bytes_per_s * factor)), kind, rows, context) <= here
    assert at(cost(replace(device, flops=device.flops * factor)), kind, rows, context) <= here
    assert at(cost(replace(device, kernel_s=device.kernel_s / factor)), kind, rows, context) <= here


sequence = st.tuples(st.integers(1, 9), st.integers(0, 9000))
sequences = st.builds(list.__mul__, st.lists(sequence, min_size=1), st.sampled_from([1, 64]))


@given(st.floats(10, 1000), parts, st.sampled_from(["qwen3-14b", "deepseek-v3", "qwen3.5-27b"]), sequences)
def test_a_batch_computes_and_reads_no_faster_than_its_device(flops_per_byte, kind, name, each):
    model, flops = StoredModel(shape=model_shape(name), weights="fp8"), flops_per_byte * 1e11
    here = RooflineCost(device=replace(SLOW_MEMORY, flops=flops), target=model, draft=model)
    shared, own = model.shared_work(kind, sum(rows for rows, _ in each)), [attention(model, kind, *one) for one in each]
    found_s = together(here, kind, *zip(*each, strict=True)) * (1 + 1e-9)
    assert found_s >= (shared.num_bytes + sum(read for read, _ in own)) / 1e11
    assert found_s >= (shared.flops + sum(computed for _, computed in own)) / flops


@given(devices, parts, st.sampled_from(["qwen3-14b", "deepseek-v3", "qwen3.5-27b"]), sequence)
def test_a_batch_of_one_sequence_is_none(device, kind, name, one):
    model, (rows, context) = StoredModel(shape=model_shape(name), weights="fp8"), one
    here = RooflineCost(device=device, target=model, draft=model)
    assert together(here, kind, [rows], [context]) == pytest.approx(at(here, kind, rows, context), rel=1e-12)


@given(devices, parts, st.integers(1, 64), st.integers(0, 64), st.integers(0, 4096), st.integers(0, 4096))
def test_more_rows_and_longer_contexts_never_cost_less(device, kind, rows, more_rows, context, more):
    assert at(cost(device), kind, rows, context) <= at(cost(device), kind, rows + more_rows, context + more)
