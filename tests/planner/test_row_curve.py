"""What verifying costs by rows: over one row, with an interval, from measured numbers where there are any."""

import itertools
import re
from dataclasses import replace
from math import log
from xml.etree import ElementTree as ET

import pytest

from decoding.errors import OutOfRangeError, PlanError, ProfileError
from hwprofiles.curves.row_curves import read_curves
from hwprofiles.engines import engine_on, run_by
from hwprofiles.model_shape import model_shape, shipped_models
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import device_sheet, shipped_names
from planner.row_curve import curve_svg, row_curve
from sim.derived.roofline import StoredModel

SMALL = StoredModel(shape=model_shape("qwen3-0.6b"), weights="int4")


def curve(device="rtx4090", model="llama-3.1-8b", weights="bf16", rows=(1, 2, 4, 8, 16), context=512):
    return row_curve(
        StoredModel(shape=model_shape(model), weights=weights), device, device_sheet(device), rows, context
    )


def test_more_rows_never_take_less_and_one_row_is_the_measure():
    found = curve()
    times_s = [one.time_s for one in found.rows]
    assert times_s == sorted(times_s)
    first = found.rows[0]
    assert (first.ratio, first.ratio_low) == (1.0, pytest.approx(1.0, abs=1e-3))
    assert [one.ratio for one in found.rows] == pytest.approx([one / times_s[0] for one in times_s])


def test_intervals_hold_their_times_and_what_rows_have_in_common_cancels_from_ratios():
    for one in curve().rows:
        assert one.low < one.time_s < one.high
        assert one.ratio_low <= one.ratio <= one.ratio_high
        assert one.ratio_high / one.ratio <= one.high / one.time_s


def test_no_interval_reaches_below_reading_all_weights_at_the_data_sheets_peak():
    found = curve("core-i9-14900k", "llama-3.1-8b", "q4_k_m")
    shape, sheet = model_shape("llama-3.1-8b"), device_sheet("core-i9-14900k")
    num_bytes = shape.num_layers * shape.layer_weight_bytes("q4_k_m") + shape.head_bytes("q4_k_m")
    assert all(one.low >= num_bytes / sheet.memory_bytes_per_s.highest for one in found.rows)


@pytest.mark.parametrize(
    ("device", "model", "weights", "published_ms"),
    [
        ("ryzen-7940hs", "mistral-nemo-12b", "bf16", 396.8),
        ("ryzen-7940hs", "mistral-7b", "bf16", 257.1),
        ("core-ultra-285k", "qwen3-0.6b", "int4", 10.4),
    ],
)
def test_small_and_large_models_on_a_cpu_take_about_as_long_as_published(device, model, weights, published_ms):
    one = curve(device, model, weights, rows=(1,), context=64).rows[0]
    assert 1e3 * one.time_s == pytest.approx(published_ms, rel=0.1)
    assert 1e3 * one.low < published_ms < 1e3 * one.high


@pytest.mark.parametrize(("model", "tokens_per_s"), [("llama-3.1-8b", 8.0), ("qwen3-8b", 10.4)])
def test_an_npu_decodes_as_its_efficiency_was_derived_in_a_runtime_of_few_graphs(model, tokens_per_s):
    one = curve("strix-halo-npu", model, "int4", rows=(1,)).rows[0]
    assert one.low < 1 / tokens_per_s < one.high


def test_beyond_what_was_measured_each_doubling_of_rows_is_as_doubtful_as_the_last_rows():
    found = curve("rtx3090", "qwen3-8b", rows=(32, 64, 1024)).rows
    widths = [log(one.ratio_high / one.ratio_low) for one in found]
    assert widths[1] < 2.5 * widths[0]
    assert widths[2] < 7 * widths[0], "five doublings"


@pytest.mark.parametrize(
    ("device", "model", "weights"),
    [("mi300x", "qwen3-32b", "fp8"), ("b200-sxm", "qwen3-32b", "nvfp4"), ("a2", "qwen3-8b", "q4_k_m")],
)
def test_more_rows_end_no_sooner_than_fewer_and_no_later_than_these_in_turn(device, model, weights):
    """However little is known of many rows, a pass over them is no quicker than one, and one row at a time is a way."""
    found = curve(device, model, weights, rows=(1, 2, 16, 32, 64, 128, 512)).rows
    for fewer, more in itertools.pairwise(found):
        in_turn = more.rows / fewer.rows
        assert fewer.low <= more.low <= more.time_s <= more.high <= in_turn * fewer.high * (1 + 1e-9)
        assert 1 <= fewer.ratio_low <= more.ratio_low <= more.ratio <= more.ratio_high
        assert more.ratio_high <= in_turn * fewer.ratio_high * (1 + 1e-9)
    alone = curve(device, model, weights, rows=(512,)).rows
    assert alone[0].low == pytest.approx(found[-1].low)
    growth = next(one for one in curve("mi300x", rows=(1,)).speed.assumptions if one.field.endswith("growth_per_row"))
    assert 0 <= growth.low <= growth.value <= growth.high


@pytest.mark.parametrize("rows", [12, 16, 32])
def test_beyond_eight_rows_an_interval_reaches_to_where_growth_per_row_goes_on(rows):
    sheet = device_sheet("rtx3090").model_copy(
        update={"growth_per_row": Quantity(value=0.1, span=(0.09, 0.11), status="measured", source="by the user")}
    )
    model = StoredModel(shape=model_shape("llama-3.1-8b"), weights="bf16")
    few, many = (row_curve(model, "rtx3090", sheet, (1, last), 512) for last in (8, rows))
    last = many.rows[-1]
    straight = 1 + (few.rows[-1].ratio - 1) * (rows - 1) / 7
    assert last.ratio < 0.9 * straight < straight < last.ratio_high < 1.1 * straight
    assert few.rows[-1].ratio_high < 1.1 * few.rows[-1].ratio
    assert not few.beyond
    assert not curve(rows=(1, rows)).beyond, "by curves"
    assert many.beyond.startswith("growth_per_row holds for up to 8 rows: ")


@pytest.mark.parametrize(
    ("device", "known", "taken"),
    [
        ("h100-sxm", 64, "(512) than the kernel law was fitted to (64): it is assumed to hold."),
        ("mi300x", 32, "(512) than row curves were measured for (32): reading is assumed to slow down no further."),
    ],
)
def test_a_curve_says_from_where_on_nobody_knows_what_rows_cost(device, known, taken):
    assert not curve(device, rows=(1, known)).beyond
    assert curve(device, rows=(1, 512)).beyond == f"Some passes have more rows {taken}"


def test_where_fewer_rows_are_padded_to_as_many_as_were_compiled_what_further_ones_cost_is_theirs():
    sheet = device_sheet("strix-halo-npu").model_copy(update={"static_shapes": True})
    model = StoredModel(shape=model_shape("qwen3-0.6b"), weights="int4")
    widths = {
        buckets: log(one.ratio_high / one.ratio)
        for buckets in ((32,), (1, 8, 16), (1, 8, 32))
        for one in row_curve(model, "npu", sheet.model_copy(update={"row_buckets": buckets}), (9,), 512).rows
    }
    assert widths[32,] < widths[1, 8, 16] < widths[1, 8, 32]


def test_what_is_nearer_to_a_measurement_is_known_better():
    law, near, far, guessed = (
        curve(device, "qwen3-1.7b", rows=(4,)).rows[0] for device in ("h100-sxm", "rtx4090", "rtx2080ti", "x-elite-gpu")
    )
    widths = [one.ratio_high / one.ratio_low for one in (law, near, far, guessed)]
    assert widths[0] < widths[1] < widths[2]
    assert widths[3] > widths[1]
    assert "measured: memory_efficiency, flops_efficiency, unhidden_share and kernel" in curve("h100-sxm").source
    assert "from measured curves, some of this engine on other devices; mainly: " in curve("mi300x").source
    assert curve("x-elite-gpu", "qwen3-1.7b").source.endswith(" and growth_per_row")


def test_an_8b_in_bf16_on_an_rtx_4090_takes_what_others_measured_there():
    """16.8 ms for one row and 17.6 for eight are sums of vLLM kernels (LLMServingSim); asked about is llama.cpp."""
    found = {one.rows: one for one in curve(context=0).rows}
    assert found[1].low < 16.8e-3 < found[1].high
    assert found[8].ratio_low < 17.6 / 16.8 < found[8].ratio_high


def test_a_curve_of_this_device_and_such_weights_comes_before_its_law_of_others():
    """By the law, of kernels in 16 bits, two of the three ratios that were measured in 4 bits lay outside."""
    is_own = lambda one: (one.device, one.engine, one.weights) == ("rtx3090", "vllm", "four")  # noqa: E731
    (measured,) = filter(is_own, read_curves())
    sheet = run_by(device_sheet("rtx3090"), "vllm")
    model = StoredModel(shape=model_shape(measured.model), weights="awq-int4")
    found = row_curve(model, "rtx3090", sheet, measured.rows, 512)
    for one, ratio in zip(found.rows, measured.ratios, strict=True):
        assert one.ratio_low <= ratio <= one.ratio_high
    assert found.rows[0].low < measured.one_row_s < found.rows[0].high, "which the law tells"
    assert "from measured curves, some of this device, engine and such weights; mainly: Qwen3.8" in found.source
    in_16_bits = row_curve(replace(SMALL, weights="bf16"), "rtx3090", sheet, (1, 64), 512)
    assert "unhidden_share" in in_16_bits.source
    assert not in_16_bits.beyond, "kernels were timed with 64 rows"


@pytest.mark.parametrize("weights", ["bf16", "fp8", "awq-int4", "q4_k_m"])
def test_naming_the_engine_that_runs_weights_by_default_changes_nothing(weights):
    small = replace(SMALL, weights=weights)
    for name, sheet in ((name, device_sheet(name)) for name in shipped_names("device")):
        if sheet.memory_bytes_per_s is not None and (engine := engine_on(sheet, weights)) is not None:
            default, named = (row_curve(small, name, one, (1, 9), 512) for one in (sheet, run_by(sheet, engine)))
            assert default == named, name


def test_what_does_not_fit_is_refused():
    with pytest.raises(PlanError, match="Qwen3-32B in bf16 needs 65.* GB with its cache, and NVIDIA GeForce RTX 4090"):
        curve(model="qwen3-32b")
    with pytest.raises(
        OutOfRangeError,
        match=r"cached tokens and \d+ rows: [\d,]+ positions, and .* has [\d,]+; --context \d+ would do",
    ):
        curve(model="smollm2-135m", context=10**6)


@pytest.mark.parametrize("device", shipped_names("device"))
def test_every_device_that_ships_has_a_curve_or_says_what_its_sheet_lacks(device):
    sheet = device_sheet(device)
    if sheet.memory_bytes_per_s is None:
        ask = "a platform that has it, by mirrorsd plan" if sheet.memory_pool else "another device"
        with pytest.raises(ProfileError, match=f"the sheet of {device} .* no memory_bytes_per_s: ask about {ask}"):
            row_curve(SMALL, device, sheet, (1,), 128)
    else:
        assert [one.rows for one in row_curve(SMALL, device, sheet, (1, 2, 4), 128).rows] == [1, 2, 4]


def test_the_interval_of_a_single_row_is_a_stroke():
    one, several = curve_svg(curve(rows=(4,))), curve_svg(curve(rows=(1, 4)))
    assert len(re.findall(r'<polygon points="[^"]+"[^>]* stroke-width="7"/>', one)) == 1
    assert 'stroke-width="7"' not in several


@pytest.mark.parametrize("rows", [(4,), (16, 1, 4)])
def test_the_picture_shows_every_row_within_its_frame(rows):
    picture = ET.fromstring(curve_svg(curve(rows=rows)))
    space = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, picture.get("viewBox").split())
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in picture.iter(f"{space}circle")]
    assert len(dots) == len(rows)
    assert all(0 < x < width and 0 < y < height for x, y in dots)
    words = {text.text for text in picture.iter(f"{space}text")}
    assert {str(one) for one in rows} <= words


@pytest.mark.parametrize(("place", "device"), [*enumerate(["rtx3090", "m5-max-gpu", "ryzen-desktop"])])
def test_every_shape_is_priced_and_more_rows_and_context_never_cost_less(place, device):
    """Each on one of three kinds of device."""
    sheet = device_sheet(device).model_copy(update={"memory_bytes": None})
    for name in shipped_models()[place::3]:
        model = StoredModel(shape=model_shape(name), weights="q4_k_m")
        near, far = (row_curve(model, device, sheet, (1, 4, 16), context) for context in (0, 500))
        times = [one.time_s for one in near.rows]
        assert 0 < times[0] <= times[1] <= times[2] < 60, name
        assert all(after.time_s >= before.time_s for before, after in zip(near.rows, far.rows, strict=True)), name
        floor_s = model.shape.num_layers * model.shape.layer_weight_bytes("q4_k_m") / sheet.memory_bytes_per_s.value
        assert times[0] >= floor_s, name
