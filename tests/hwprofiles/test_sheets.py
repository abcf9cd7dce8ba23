import re
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from decoding.yaml_file import load_yaml
from hwprofiles.platform_parts import PlacedDevice
from hwprofiles.sheets import DeviceSheet, device_sheet, shipped_names


def test_a_purchase_costs_by_the_hour_what_its_write_off_makes_of_it() -> None:
    card, rented = device_sheet("rtx4090"), device_sheet("h200-sxm")
    assert card.usd_per_hour == pytest.approx(1599 / (3 * 365 * 24))
    assert rented.usd_per_hour == 4.0
    assert device_sheet("generic-cpu").usd_per_hour is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ("dispatch_s: {value: 1.0e-5, status: derived, source: x}", "dispatch_s and dispatch_of belong together"),
        ("dispatch_of: graph", "dispatch_s and dispatch_of belong together"),
        ("row_buckets: [1, 8]", "row_buckets are of devices with static_shapes"),
        ("static_shapes: true\nrow_buckets: [8, 1]", "must be ascending"),
        ("price_usd: {value: 9.0, status: derived, source: x}", "price_usd and write_off_s belong together"),
        ("flops_efficiency: {value: 1.2, status: derived, source: x}", "1.2 is outside 1e-06..1"),
        ("power_w: {value: 2.0, status: known, source: x}", "Input should be 'datasheet', 'measured', 'derived' or"),
    ],
)
def test_a_sheet_that_contradicts_itself_is_refused(tmp_path: Path, fields: str, complaint: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"name: mine\nkind: npu\n{fields}\n")
    with pytest.raises(ConfigError, match=complaint):
        load_yaml(path, DeviceSheet)


@pytest.mark.parametrize(
    ("generation", "known"),
    [
        *[(r"rtx40\d0(?!-ada).*", "rtx4090"), (r"rtx\d+-ada|l20|l40?s?", "l40s"), (r"rtx50\d0(?!-ada).*", "rtx5090")],
        *[(r"rtx-pro-.*", "rtx-pro-6000"), (r"rx90.*|r9700", "rx9070xt"), (r"mi30.*", "mi300x")],
    ],
)
def test_fewer_bits_are_as_many_times_as_fast_on_all_cards_of_a_generation(generation: str, known: str) -> None:
    """Where some of them had no peak of their own, a comparison of two was of two conventions."""

    def times(name: str) -> list[float]:
        sheet = device_sheet(name)
        half = sheet.bf16_flops.value if sheet.bf16_flops else 0
        return [peak.value / half if peak else 1 for peak in (sheet.fp8_flops, sheet.fp4_flops)]

    cards = [name for name in shipped_names("device") if re.fullmatch(generation, name)]
    assert known in cards
    assert times(known)[0] == pytest.approx(2, rel=0.03)
    assert {name: times(name) for name in cards} == {name: pytest.approx(times(known), rel=0.03) for name in cards}


@pytest.mark.parametrize("name", shipped_names("device"))
def test_a_chip_is_called_as_names_call_it(name: str) -> None:
    """`RTX 4090` was no chip, without a word: rows were priced by the curves of a P40."""
    chip = device_sheet(name).chip
    mine = DeviceSheet(name="mine", kind=device_sheet(name).kind, chip=chip)
    assert mine.chip == chip


@pytest.mark.parametrize("told", ["RTX 4090", "RTX4090", "rtx-4090", "GeForce RTX 4090"])
def test_words_for_a_chip_are_the_chip(told: str) -> None:
    assert DeviceSheet(name="mine", kind="gpu", chip=told).chip == "rtx4090"


@pytest.mark.parametrize("empty", [{"maker": None}, {"chip": ""}, {"chip": None}, {"maker": None, "chip": ""}])
@pytest.mark.parametrize("named", [{"name": "NVIDIA GeForce RTX 4090"}, {"name": "mine", "sheet": "rtx4090"}])
def test_a_maker_or_chip_that_is_left_empty_is_none_that_is_told(
    empty: dict[str, str | None], named: dict[str, str]
) -> None:
    device = PlacedDevice.model_validate({"kind": "gpu"} | named | empty)
    assert (device.maker, device.chip) == ("NVIDIA", "rtx4090")


UNITS = re.compile(r"([\d,]+) (?:multiprocessors|cores|compute units) at ([\d.]+) GHz.*?([\d,]+) operations a cycle")


@pytest.mark.parametrize("name", shipped_names("device"))
def test_a_peak_is_the_product_of_the_units_clock_and_operations_that_its_source_names(name: str) -> None:
    flops = device_sheet(name).bf16_flops
    if flops is not None and (told := UNITS.search(flops.source)) is not None:
        units, gigahertz, operations = (float(one.replace(",", "")) for one in told.groups())
        assert flops.value == pytest.approx(units * gigahertz * 1e9 * operations, rel=0.03)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("a2", 18.13e12),  # bf16, dense, by hmc-tech.com
        ("rtx4000-ada", 106.91e12),
        ("rtx5000-ada", 261.12e12),
        ("rtx-a4000", 153.4e12 / 2),  # sparse, by NVIDIA
        ("rtx2000-ada", 191.9e12 / 4),  # sparse fp8
        ("xeon-8480", 56 * 2.0e9 * 1024),  # of AMX in bf16, by Wikipedia
        ("radeon-890m", 16 * 2.9e9 * 512),  # of RDNA 3 in fp16, by gpuopen.com
        ("jetson-orin-nx-gpu", 42.5e12 * 8 / 16 * 0.918 / 1.3),  # of AGX Orin, which has 16 multiprocessors at 1.3 GHz
        ("gtx1660super", 2 * 1408 * 2 * 1.785e9),  # twice fp32, by TechPowerUp
    ],
)
def test_a_peak_in_16_bits_with_fp32_sums_is_as_published(name: str, published: float) -> None:
    flops = device_sheet(name).bf16_flops
    assert flops is not None
    assert flops.value == pytest.approx(published, rel=0.01)


def test_what_one_small_model_told_of_an_npu_is_open_towards_larger_ones() -> None:
    efficiency = device_sheet("lunar-lake-npu4").memory_efficiency
    assert efficiency is not None
    assert efficiency.span is not None
    assert efficiency.value == 0.064
    assert efficiency.span[1] > 2 * efficiency.value
    assert "rests on this one model of 0.6B" in efficiency.source
