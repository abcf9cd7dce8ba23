from dataclasses import replace

import pytest

from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.curves.row_prices import STARTS_OF_MIXTURES
from hwprofiles.engines import CurvePrices, priced, run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet, device_sheet, shipped_names
from sim.derived.device_speed import ROW_BUCKETS, device_speed
from sim.derived.sheet_numbers import guesses


def known(value, status="datasheet", span=None):
    return Quantity(value=value, status=status, source="made up", span=span, by="us" if status == "measured" else None)


POOL = known(1e11)


def sheet(**fields):
    return DeviceSheet(**{"name": "a GPU", "kind": "gpu", "bf16_flops": known(1e13)} | fields)


@pytest.mark.parametrize(
    ("fields", "efficiency"),
    [
        ({"memory_efficiency": known(0.8, "measured", (0.7, 0.9))}, known(0.8, "measured", (0.7, 0.9))),
        ({}, guesses()["memory_efficiency"]["gpu"]),
    ],
    ids=["by the sheet", "guessed by the kind of device"],
)
def test_a_device_reads_at_an_efficiency_of_its_sheet_or_of_its_kind(fields, efficiency):
    speed = device_speed("gpu", sheet(**fields), POOL)
    (found,) = (one for one in speed.assumptions if one.field == "gpu.memory_efficiency")
    assert (found.value, found.status, (found.low, found.high)) == (
        efficiency.value,
        efficiency.status,
        efficiency.span,
    )
    assert speed.bytes_per_s == pytest.approx(1e11 * efficiency.value)


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_numbers_of_a_sheet_count_before_those_of_engines(engine):
    own = {"memory_efficiency": known(0.3), "growth_per_row": known(0.2), "dispatch_s": known(1e-3)}
    one = sheet(name="NVIDIA GeForce RTX 4090", engine=engine, dispatch_of="kernel", **own)
    curves = priced(one, model_shape("llama-3.1-8b"), "bf16")
    speed = device_speed("gpu", one, POOL, curves, "bf16")
    assert (speed.bytes_per_s, speed.growth_per_row, speed.kernel_s) == (0.3e11, 0.2, 1e-3)
    started = one.model_copy(update={"memory_efficiency": None})
    assert device_speed("gpu", started, POOL, curves, "bf16").kernel_s == 1e-3


def test_a_start_of_a_kernel_ships_with_no_gpu_since_it_is_the_engines():
    gpus = [one for name in shipped_names("device") if (one := device_sheet(name)).kind == "gpu"]
    assert [one.name for one in gpus if one.dispatch_s is not None] == []


def test_errors_widen_with_every_step_that_nobody_measured():
    measured = device_speed("gpu", sheet(memory_efficiency=known(0.75, "measured")), POOL)
    guessed = device_speed("gpu", sheet(), POOL)
    derived_too = device_speed("gpu", sheet(), known(1e11, "derived"))
    assert measured.reading_error < guessed.reading_error < derived_too.reading_error


def test_a_measured_rate_of_computing_is_reached_and_a_published_peak_is_not():
    assert device_speed("gpu", sheet(bf16_flops=known(1e13, "measured")), POOL).flops == 1e13
    assert device_speed("gpu", sheet(flops_efficiency=known(0.3)), POOL).flops == pytest.approx(3e12)


def test_a_device_draws_no_more_than_its_own_cap():
    assert device_speed("npu", sheet(kind="npu", memory_cap_bytes_per_s=known(2e10)), POOL).bytes_per_s == 2e10
    assert device_speed("npu", sheet(kind="npu", memory_cap_bytes_per_s=known(9e11)), POOL).bytes_per_s == 1e11


def test_weights_that_take_long_to_unpack_have_a_cap_of_their_own():
    caps = sheet(kind="cpu", memory_cap_bytes_per_s=known(2e10), int4_cap_bytes_per_s=known(3e9, span=(2e9, 4e9)))
    int4, int8, others = (device_speed("cpu", caps, POOL, weights=weights) for weights in ("int4", "int8", None))
    assert (int4.bytes_per_s, int8.bytes_per_s, others.bytes_per_s) == (3e9, 2e10, 2e10)
    assert int4.reading_error > int8.reading_error


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_cache_is_read_as_the_sheet_says_else_as_kinds_of_device_do(kind):
    guess, field = guesses()["cache_efficiency"][kind], f"{kind}.cache_efficiency"
    guessed, told, moved = (
        device_speed(kind, sheet(kind=kind, **fields), POOL, moved=moved)
        for fields, moved in (({}, {}), ({"cache_efficiency": known(0.4)}, {}), ({}, {field: 0.2}))
    )
    assert [one.cache_efficiency for one in (guessed, told, moved)] == [guess.value, 0.4, 0.2]
    assert guessed.cache_s(1e9, 1, 1e9) == pytest.approx(1e9 / (guessed.bytes_per_s * guess.value))
    (found,) = (one for one in guessed.assumptions if one.field == field)
    assert (found.low, found.high) == guess.span


def test_a_cache_is_read_no_faster_than_the_data_sheet_says():
    speed = device_speed("gpu", sheet(kind="gpu", cache_efficiency=known(2.0)), POOL)
    assert speed.cache_s(1e9, 1, 0) == pytest.approx(1e9 / POOL.value)


def test_the_error_of_a_cache_is_one_of_its_time():
    told = known(1.0).model_copy(update={"span": (0.5, 2.0)})
    speed = device_speed("gpu", sheet(kind="gpu", cache_efficiency=told), POOL)
    assert speed.cache_error == pytest.approx((2 - 0.5) / 2)


def test_unpacking_slows_weights_and_not_the_cache():
    own = {"memory_cap_bytes_per_s": known(2e10), "int4_cap_bytes_per_s": known(4e9), "cache_efficiency": known(0.2)}
    int4, others = (device_speed("cpu", sheet(kind="cpu", **own), POOL, weights=weights) for weights in ("int4", None))
    assert int4.bytes_per_s < others.bytes_per_s
    assert int4.cache_s(1e9, 1, 0) == pytest.approx(others.cache_s(1e9, 1, 0)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("kind", "engine", "is_once"),
    [("gpu", "llama.cpp", True), ("gpu", "ik_llama.cpp", True), ("gpu", "mlx", False), ("cpu", "llama.cpp", False)],
)
def test_kernels_of_llamacpp_on_gpus_read_what_is_long_of_a_cache_once_for_some_rows(kind, engine, is_once):
    speed = device_speed("one", sheet(kind=kind, engine=engine, growth_per_row=known(0.1)), POOL)
    assert speed.reads_cache_once == is_once
    assert speed.cache_s(1e9, 8, 2e8) == pytest.approx((0.2 * 1.7 + 0.8) * speed.cache_s(1e9, 1, 2e8))


def test_kernels_are_dispatched_one_by_one_and_graphs_once():
    kernels = device_speed("gpu", sheet(dispatch_s=known(5e-6), dispatch_of="kernel"), POOL)
    graphs = device_speed("npu", sheet(kind="npu", dispatch_s=known(1e-4), dispatch_of="graph"), POOL)
    assert (kernels.kernel_s, kernels.graph_s, kernels.queues_kernels) == (5e-6, 0.0, True)
    assert (graphs.kernel_s, graphs.graph_s) == (0.0, 1e-4)


def test_a_measured_law_replaces_dispatch_growth_and_the_share_of_the_peak():
    law = {"kernel_start_s": known(4e-6, "measured"), "unhidden_share": known(0.5, "measured")}
    speed = device_speed("gpu", sheet(dispatch_s=known(9e-6), dispatch_of="kernel", **law), POOL)
    assert (speed.kernel_s, speed.unhidden_share / speed.flops) == (4e-6, 0.5 / 1e13), "of the time at peak"
    assert speed.growth(8) == 1
    assert speed.growth_error(8) == 0


def test_a_mixture_is_not_by_the_law_of_dense_models_even_if_no_curve_tells_its_reading():
    law = {"kernel_start_s": known(4e-6, "measured"), "unhidden_share": known(0.5, "measured")}
    mixture, dense = (
        device_speed("gpu", sheet(**law), POOL, CurvePrices("vllm", None, None, is_mixture=one))
        for one in (True, False)
    )
    assert (mixture.is_by_law, dense.is_by_law) == (False, True)
    assert mixture.kernel_s == guesses()["dispatch_s"]["gpu"].value


def test_many_rows_are_computed_as_fast_as_was_measured_with_a_law_and_without():
    law = {"kernel_start_s": known(4e-6, "measured"), "unhidden_share": known(0.5, "measured")}
    reached = {"flops_efficiency": known(0.7, "measured")}
    assert device_speed("gpu", sheet(**reached, **law), POOL).flops == pytest.approx(7e12)
    assert device_speed("gpu", sheet(**law), POOL).flops == device_speed("gpu", sheet(), POOL).flops == 5e12
    h100 = device_sheet("h100-sxm")
    flops = {
        engine: device_speed("gpu", run_by(h100, engine), POOL).flops / h100.bf16_flops.value
        for engine in ("vllm", "llama.cpp")
    }
    assert flops == {"vllm": pytest.approx(0.7), "llama.cpp": pytest.approx(0.5)}, "one's kernels are not the other's"


def test_rows_that_cost_nothing_by_curves_can_be_taken_to_cost_something():
    curves = priced(device_sheet("b200-sxm"), model_shape("qwen3-8b"), "bf16")
    flat = curves._replace(rows=replace(curves.rows, ratios=(1.0,) * len(curves.rows.ratios)))
    moved = device_speed("gpu", sheet(), POOL, flat, "bf16", {"gpu.growth_per_row": 0.1})
    assert [moved.growth(rows) for rows in (1, 5, 8, 16)] == pytest.approx([1.0, 1.4, 1.7, 1.7])


@pytest.mark.parametrize(
    ("device", "weights", "times"),
    [
        *[("h100-sxm", "fp8", 2), ("h100-sxm", "w8a8", 2), ("b200-sxm", "nvfp4", 4), ("rtx5090", "nvfp4", 8)],
        *[("rtx4090", "fp8", 2), ("rtx4090", "w8a8", 4), ("mi300x", "fp8", 2)],
        *[(name, weights, 1) for name in ("h100-sxm", "b200-sxm") for weights in ("bf16", "int8", "awq-int4")],
        *[("a100-80-sxm", "fp8", 1), ("h100-sxm", "nvfp4", 1), ("b200-sxm", "nvfp4a16", 1)],
    ],
)
def test_servers_multiply_in_the_bits_of_weights_where_the_device_can(device, weights, times):
    """Others are of weights alone: they are widened, as FP8 is on an A100."""
    on_vllm, on_transformers = (
        device_speed("gpu", run_by(device_sheet(device), engine), POOL, weights=weights)
        for engine in ("vllm", "transformers")
    )
    assert on_vllm.times_flops.get(weights, 1.0) == pytest.approx(times, rel=0.03)
    assert not on_transformers.times_flops
    told = {one.field for one in on_vllm.assumptions} & {"gpu.fp8_flops", "gpu.fp4_flops", "gpu.int8_ops"}
    assert len(told) == (times > 1)


@pytest.mark.parametrize(
    ("half", "eight", "times"),
    [
        ("datasheet", "datasheet", 2),
        ("measured", "measured", 2),
        ("measured", "datasheet", 1),
        ("datasheet", "measured", 4),
    ],
)
def test_of_a_peak_a_share_is_reached_and_of_what_was_reached_all(half, eight, times):
    given = {"bf16_flops": known(1e13, half), "fp8_flops": known(2e13, eight), "engine": "vllm"}
    found = device_speed("gpu", sheet(**given), POOL, weights="fp8")
    assert found.times_flops["fp8"] == pytest.approx(times)
    told = [one.field for one in found.assumptions].count("gpu.flops_efficiency")
    assert told == ("datasheet" in (half, eight))


def test_growth_by_rows_ends_at_eight_and_is_as_doubtful_as_its_source():
    guessed, told = (device_speed("gpu", sheet(**fields), POOL) for fields in ({}, {"growth_per_row": known(0.1)}))
    assert told.growth(1) == 1 < told.growth(2) < told.growth(8) == told.growth(64) == pytest.approx(1.7)
    assert guessed.growth_error(1) == 0 < guessed.growth_error(2) < guessed.growth_error(8) == guessed.growth_error(9)
    assert told.growth_error(8) < guessed.growth_error(8)
    assert [told.growing_on(rows).growth(rows) for rows in (1, 8, 9, 64)] == pytest.approx([1, 1.7, 1.8, 7.3])
    padded = device_speed(
        "npu", sheet(kind="npu", static_shapes=True, row_buckets=(8, 32), growth_per_row=known(0.1)), POOL
    )
    assert [padded.growing_on(rows).growth(32) for rows in (8, 9)] == pytest.approx([1.7, 4.1])


def test_static_shapes_pad_rows_and_contexts():
    speed = device_speed("npu", sheet(kind="npu", static_shapes=True, row_buckets=(1, 8, 32)), POOL)
    assert [speed.padded_rows(rows) for rows in (1, 2, 8, 9, 32)] == [1, 8, 8, 32, 32]
    assert [speed.padded_context(context) for context in (0, 1, 256, 257)] == [0, 256, 256, 512]
    with pytest.raises(OutOfRangeError, match="at most 32 rows, not for 33"):
        speed.padded_rows(33)
    assert device_speed("npu", sheet(kind="npu", static_shapes=True), POOL).row_buckets == ROW_BUCKETS

    other = device_speed("gpu", sheet(), POOL)
    assert (other.padded_rows(77), other.padded_context(1001)) == (77, 1001)


def test_a_device_of_which_nobody_says_what_it_computes_is_refused():
    with pytest.raises(ProfileError, match="gives no bf16_flops"):
        device_speed("gpu", sheet(bf16_flops=None), POOL)


@pytest.mark.parametrize("device", ["lunar-lake-gpu", "panther-lake-gpu"])
def test_a_mixture_on_a_gpu_that_nobody_measured_is_less_sure_than_where_one_was_measured(device):
    """Data sheets tell what dense models read at; mixtures are by curves, which know that their layers start more."""
    mixture = model_shape("qwen3-30b-a3b")

    def speed(name):
        one = device_sheet(name)
        return device_speed("gpu", one, one.memory_bytes_per_s, priced(one, mixture, "q4_k_m"), "q4_k_m")

    measured, found = speed("strix-halo-gpu"), speed(device)
    assert found.reading_error > measured.reading_error
    assert found.starts_of_mixtures == STARTS_OF_MIXTURES["llama.cpp"]
    assert next(one for one in found.assumptions if one.field == "gpu.memory_efficiency").source.startswith("by step")


@pytest.mark.parametrize("status", ["guessed", "measured", "derived"])
@pytest.mark.parametrize("device", ["lunar-lake-gpu", "rtx4090"])
def test_what_a_user_says_of_reading_is_of_mixtures_too(device, status):
    mixture, one = model_shape("qwen3-30b-a3b"), device_sheet(device)
    prices = priced(one, mixture, "q4_k_m")
    given = one.model_copy(update={"memory_efficiency": known(0.5, status)})
    assert device_speed("gpu", given, POOL, prices, "q4_k_m").bytes_per_s == 0.5 * POOL.value
