from pathlib import Path

import pytest

from decoding.errors import ConfigError
from decoding.yaml_file import load_yaml
from hwprofiles.sheets import DeviceSheet, device_sheet


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
