import re

import pytest

from hwprofiles.lint import lint_device, lint_link
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import (
    DeviceSheet,
    LinkSheet,
    device_sheet,
    link_sheet,
    shipped_names,
)


def quantity(value: float) -> Quantity:
    return Quantity(value=value, status="datasheet", source="somebody's table")


def device(name: str, **changes: float) -> DeviceSheet:
    return device_sheet(name).model_copy(update={field: quantity(value) for field, value in changes.items()})


def link(name: str, **changes: float) -> LinkSheet:
    return link_sheet(name).model_copy(update={field: quantity(value) for field, value in changes.items()})


def test_the_shipped_sheets_are_clean() -> None:
    findings = [finding for name in shipped_names("device") for finding in lint_device(device_sheet(name))]
    findings += [finding for name in shipped_names("link") for finding in lint_link(link_sheet(name))]
    assert findings == []


@pytest.mark.parametrize(
    ("sheet", "suspicion"),
    [
        (device("h100-sxm", bf16_flops=1979e12, int8_ops=3958e12), "bf16_flops .* sparse figure"),
        (device("h100-sxm", int8_ops=3958e12), "int8_ops .* sparse figure"),
        (device("h100-sxm", int8_ops=9890e12), "int8_ops over bf16_flops is 10"),
        (device("a100-80-sxm", memory_bytes_per_s=4e12), "memory_bytes_per_s 4e\\+12 is above the published"),
        (device("b200-sxm", memory_bytes_per_s=13.4e12), "memory_bytes_per_s .* other units"),
        (device("a100-80-sxm", memory_bytes_per_s=2.039 * 2**40), "binary instead of decimal"),
        (device("h100-sxm", dispatch_s=5.0), "dispatch_s 5 s .* milli- and microseconds"),
        (device("h200-sxm", memory_bytes_per_s=4800), "memory_bytes_per_s .* other units"),
    ],
)
def test_each_common_mistake_in_a_device_is_suspected(sheet: DeviceSheet, suspicion: str) -> None:
    findings = lint_device(sheet)
    assert findings
    assert any(re.search(suspicion, finding) for finding in findings), findings


@pytest.mark.parametrize(
    ("sheet", "suspicion"),
    [
        (link("nvlink-4", bytes_per_s=900e9), "both directions added up"),
        (link("nvlink-5", bytes_per_s=1800e9), "both directions added up"),
        (link("pcie-4-x16", bytes_per_s=53e9), "above the published"),
        (link("nvlink-4", latency_s=1.5), "milli- and microseconds"),
    ],
)
def test_each_common_mistake_in_a_link_is_suspected(sheet: LinkSheet, suspicion: str) -> None:
    assert any(suspicion in finding for finding in lint_link(sheet))


def test_a_sheet_under_another_name_is_compared_with_the_reference_given() -> None:
    sheet = device("h100-sxm", bf16_flops=1979e12).model_copy(update={"name": "my GPU", "int8_ops": None})
    assert lint_device(sheet) == []
    assert lint_device(sheet, device_sheet("h100-sxm")) != []
