from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.errors import ConfigError, ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet, device_sheet, link_sheet


@pytest.mark.parametrize("reader", [device_sheet, link_sheet])
def test_an_unknown_name_is_answered_with_those_there_are(reader) -> None:
    with pytest.raises(ProfileError, match="'h300'.*there are .*(a100-80-sxm|nvlink-4)"):
        reader("h300")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_a_published_number_is_a_number(value: float) -> None:
    with pytest.raises(ValidationError, match="value"):
        Quantity(value=value, status="datasheet", source="test")


PUBLISHED = {
    # id: bf16 TFLOP/s, int8 TOP/s, memory GB/s, GB, W
    "h200-sxm": (989, 1979, 4800, 141, 700),
    "h100-sxm": (989, 1979, 3350, 80, 700),
    "b200-sxm": (2250, 4500, 7700, 180, 1000),
    "a100-80-sxm": (312, 624, 2039, 80, 400),
    "l40s": (362, 733, 864, 48, 350),
    "rtx4090": (165, 661, 1008, 24, 450),
    "mi300x": (1307, 2615, 5300, 192, 750),
    "ascend-910b2": (354, 708, 1600, 64, 400),
    "m2-ultra-gpu": (27.2, None, 800, 192, None),
    "m2-ultra-ane": (15.8, 31.6, 800, 192, 2),
    "m4-max-gpu": (14.7, None, 546, 128, 80),
    "m4-ane": (5.7, 38, 546, 128, 2),
    "strix-halo-gpu": (59, None, 256, 128, 55),
    "strix-halo-npu": (25, 50, 256, 128, 55),
    "lunar-lake-gpu": (33, 67, 136.5, 32, 30),
    "lunar-lake-npu4": (24, 48, 136.5, 32, 30),
    "panther-lake-gpu": (60, 120, 153.6, 96, 25),
    "panther-lake-npu5": (25, 50, 153.6, 96, 25),
    "x-elite-gpu": (9.2, None, 136, 64, 80),
    "x-elite-hexagon": (22.5, 45, 136, 64, 80),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_device_has_the_numbers_that_are_published(name: str) -> None:
    sheet = device_sheet(name)
    found = (sheet.bf16_flops, sheet.int8_ops, sheet.memory_bytes_per_s, sheet.memory_bytes, sheet.power_w)
    in_units = zip(found, (1e12, 1e12, 1e9, 1e9, 1), strict=True)
    assert tuple(None if one is None else one.value / unit for one, unit in in_units) == pytest.approx(PUBLISHED[name])


@pytest.mark.parametrize(
    ("name", "giga", "micro"),
    [
        ("nvlink-3", 300, 9),
        ("nvlink-4", 450, 1.5),
        ("nvlink-5", 900, 1),
        ("pcie-4-x16", 32, 10),
        ("pcie-5-x16", 57, 5),
        ("infinity-fabric-mi300x", 448, 1),
        ("hccs-910b", 196, None),
        ("ultrafusion", 1250, None),
        ("thunderbolt-4", 5, 100),
        ("thunderbolt-5", 10, 100),
        ("infiniband-400g", 50, 5),
        ("unified-memory", None, 60),
    ],
)
def test_a_link_has_the_numbers_that_are_published_of_one_direction(name: str, giga: float, micro: float) -> None:
    sheet = link_sheet(name)
    found = (sheet.bytes_per_s, 1e9, giga), (sheet.latency_s, 1e-6, micro)
    for quantity, unit, published in found:
        assert published is None if quantity is None else quantity.value / unit == pytest.approx(published)


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
