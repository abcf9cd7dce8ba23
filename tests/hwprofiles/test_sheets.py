from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.errors import ConfigError, ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet, device_sheet, link_sheet, shipped_names

WEIGHTS_OF_8B_BYTES = 16.06e9


@pytest.mark.parametrize(
    ("name", "floor_ms"),
    [
        ("h200-sxm", 3.3),
        ("h100-sxm", 4.8),
        ("b200-sxm", 2.1),
        ("a100-80-sxm", 7.9),
        ("l40s", 18.6),
        ("rtx4090", 15.9),
        ("mi300x", 3.0),
        ("ascend-910b2", 10.0),
        ("m2-ultra-gpu", 20.1),
        ("strix-halo-gpu", 62.7),
        ("x-elite-gpu", 118.1),
    ],
)
def test_bandwidth_bounds_an_8b_model_as_published(name: str, floor_ms: float) -> None:
    floor_s = device_sheet(name).bandwidth_floor_s(WEIGHTS_OF_8B_BYTES)
    assert floor_s * 1e3 == pytest.approx(floor_ms, abs=0.05)


def test_engines_of_one_chip_name_the_same_memory() -> None:
    gpu, npu = device_sheet("lunar-lake-gpu"), device_sheet("lunar-lake-npu4")
    assert gpu.memory_pool == npu.memory_pool == "lunar-lake"
    assert gpu.memory_bytes_per_s == npu.memory_bytes_per_s


def test_every_shipped_sheet_is_valid() -> None:
    assert [device_sheet(name).name for name in shipped_names("device")]
    assert [link_sheet(name).name for name in shipped_names("link")]


def test_a_number_that_is_not_published_is_an_error_not_a_guess() -> None:
    with pytest.raises(ProfileError, match="NVIDIA|CPU; calibrate"):
        device_sheet("generic-cpu").bandwidth_floor_s(1e9)


@pytest.mark.parametrize("reader", [device_sheet, link_sheet])
def test_an_unknown_name_is_answered_with_those_there_are(reader) -> None:
    with pytest.raises(ProfileError, match="'h300'.*there are .*(a100-80-sxm|nvlink-4)"):
        reader("h300")


def test_a_number_without_a_source_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: mine\nkind: gpu\npower_w:\n  value: 100.0\n  status: datasheet\n")
    with pytest.raises(ConfigError, match=r"own\.yaml:4.*power_w\.source"):
        load_yaml(path, DeviceSheet)


def test_a_value_outside_its_span_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 is outside its span 1\.\.2"):
        Quantity(value=3, span=(1, 2), status="measured", source="x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_a_published_number_is_a_number(value: float) -> None:
    with pytest.raises(ValidationError, match="value"):
        Quantity(value=value, status="datasheet", source="test")
