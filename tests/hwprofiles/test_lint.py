"""One bad file per class of mistakes: each is found on its line, with its value."""

import re
from pathlib import Path

import pytest

from hwprofiles.lint import Finding, lint_file, shipped_files
from hwprofiles.sheets import shipped_file

DATASHEET = "status: datasheet, source: somebody"
DEVICE = "name: mine\nkind: gpu\n"
PLATFORM = f"""name: mine
host: gpu
devices:
  gpu: {{name: a GPU, kind: gpu, memory_bytes_per_s: {{value: 1.0e+11, {DATASHEET}}}}}
  npu: {{name: an NPU, kind: npu}}
memory_pools:
  memory:
    devices: [gpu, npu]
    bytes_per_s: {{value: 1.0e+11, {DATASHEET}}}
links:
  - between: [gpu, npu]
    latency_s: {{value: 1.0e-5, {DATASHEET}}}
"""


def findings(folder: Path, text: str, name: str = "mine.yaml") -> list[Finding]:
    path = folder / name
    path.write_text(text)
    return list(lint_file(path))


def shipped(kind, name: str, before: str, after: str) -> str:
    """A shipped file with a mistake in it."""
    text = shipped_file(kind, name).read_text()
    assert text.count(before) == 1
    return text.replace(before, after)


def device(field: str, value: str, rest: str = DATASHEET) -> str:
    return f"{DEVICE}{field}:\n  {{value: {value}, {rest}}}\n"


def link(value: str, source: str) -> str:
    rate = f"{{value: {value}, status: datasheet, source: '{source}'}}"
    return f"name: mine\nlatency_s: {{value: 1.0e-6, {DATASHEET}}}\nbytes_per_s: {rate}\n"


def changed(before: str, after: str) -> str:
    assert PLATFORM.count(before) == 1
    return PLATFORM.replace(before, after)


def line_with(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_all_that_is_shipped_is_clean() -> None:
    assert [finding for file in shipped_files() for finding in lint_file(file)] == []


def test_what_is_right_is_clean(tmp_path: Path) -> None:
    assert findings(tmp_path, PLATFORM) == []
    assert findings(tmp_path, device("bf16_flops", "1.0e+14")) == []
    assert findings(tmp_path, link("5.0e+9", "40 Gb/s")) == []


def test_a_copy_of_what_is_shipped_is_clean_under_any_name(tmp_path: Path) -> None:
    for path in shipped_files():
        assert findings(tmp_path, path.read_text()) == []


CASES = {
    "sparse peak as dense, of a known device": (
        shipped("device", "h100-sxm", "9.89e+14", "1.979e+15"),
        "1.979e+15",
        r"bf16_flops 1.979e\+15: twice the published 9.89e\+14: a sparse figure listed as dense\?",
    ),
    "sparse 8-bit peak": (
        shipped("device", "h100-sxm", "1.979e+15", "3.958e+15"),
        "3.958e+15",
        r"int8_ops 3.958e\+15: twice the published .* sparse figure",
    ),
    "one peak sparse, the other dense": (
        DEVICE + f"bf16_flops: {{value: 1.0e+14, {DATASHEET}}}\nint8_ops: {{value: 8.0e+14, {DATASHEET}}}\n",
        "8.0e+14",
        r"int8_ops 8e\+14: int8_ops over bf16_flops is 8, usually 2",
    ),
    "2^40 as tera": (
        shipped("device", "h100-sxm", "value: 3.35e+12", "value: 3.6834e+12"),
        "3.6834e+12",
        r"memory_bytes_per_s 3.6834e\+12: a little above the published 3.35e\+12: 2\^40 used as tera\?",
    ),
    "2^30 as giga": (
        device("memory_bytes", "8.589934592e+10"),
        "8.589934592e+10",
        r"memory_bytes 8.58993e\+10: exactly 80 x 2\^30: 2\^30 used as giga\?",
    ),
    "bits as bytes of a known link": (
        shipped("link", "thunderbolt-4", "value: 5.0e+09", "value: 4.0e+10"),
        "4.0e+10",
        r"bytes_per_s 4e\+10: eight times the published 5e\+09: bits taken for bytes\?",
    ),
    "operations of the platform for one engine, of a known chip": (
        shipped("device", "lunar-lake-npu4", "value: 4.8e+13", "value: 1.2e+14"),
        "1.2e+14",
        r"int8_ops 1.2e\+14: above the published 4.8e\+13: operations of the whole platform counted for one engine\?",
    ),
    "more bandwidth than the part has": (
        shipped("device", "a100-80-sxm", "value: 2.039e+12", "value: 4.0e+12"),
        "4.0e+12",
        r"memory_bytes_per_s 4e\+12: above the published 2.039e\+12",
    ),
    "gigabytes instead of bytes": (
        device("memory_bytes_per_s", "4800.0"),
        "4800.0",
        r"memory_bytes_per_s 4800: outside .*: other units",
    ),
    "microseconds instead of seconds": (
        shipped("link", "nvlink-4", "value: 1.5e-06\n  span: [1.0e-06, 2.0e-06]", "value: 1.5"),
        "value: 1.5",
        r"latency_s 1.5: outside 1e-08..0.005, .*: milli- and microseconds mixed\?",
    ),
    "a pool above its memory": (
        changed(
            "[gpu, npu]\n    bytes",
            f"[gpu, npu]\n    transfers_per_s: {{value: 8.0e+9, {DATASHEET}}}\n"
            f"    bus_bits: {{value: 64.0, {DATASHEET}}}\n    bytes",
        ),
        "    bytes_per_s",
        r"memory_pools.memory.bytes_per_s 1e\+11: above memory speed times bus width, which is 6.4e\+10",
    ),
    "a device above its pool": (
        changed("kind: npu", f"kind: npu, memory_cap_bytes_per_s: {{value: 2.0e+11, {DATASHEET}}}"),
        "2.0e+11",
        r"devices.npu.memory_cap_bytes_per_s 2e\+11: above the 1e\+11 of its pool 'memory'",
    ),
    "a cap above the device's own memory": (
        DEVICE + f"memory_bytes_per_s: {{value: 1.0e+11, {DATASHEET}}}\n"
        f"memory_cap_bytes_per_s: {{value: 2.0e+11, {DATASHEET}}}\n",
        "2.0e+11",
        r"memory_cap_bytes_per_s 2e\+11: the device's own cap is above the 1e\+11 of its memory",
    ),
    "a link to an unknown device": (
        changed("[gpu, npu]\n    latency", "[gpu, nqu]\n    latency"),
        "nqu",
        r"links.0.between.1: no device is called 'nqu'; there are gpu, npu",
    ),
    "a pool of an unknown device": (
        changed("[gpu, npu]\n    bytes", "[gpu, dsp]\n    bytes"),
        "dsp",
        r"memory_pools.memory.devices.1: no device is called 'dsp'",
    ),
    "an unknown host": (changed("host: gpu", "host: cpu"), "host: cpu", r"host: no device is called 'cpu'"),
    "a number without a source": (
        DEVICE + "power_w: {value: 100.0, status: datasheet}\n",
        "100.0",
        r"power_w.source: Field required",
    ),
    "a bare number": (
        changed("kind: npu", "kind: npu, power_w: 2.0"),
        "power_w: 2.0",
        r"devices.npu.power_w 2: a bare number: say where it is from",
    ),
    "a price without a day": (
        device("price_usd_per_hour", "2.5"),
        "2.5",
        r"price_usd_per_hour 2.5: a price without the day it holds for",
    ),
    "a value outside its span": (
        device("power_w", "300.0", f"span: [100.0, 200.0], {DATASHEET}"),
        "300.0",
        r"power_w: value 300 is outside its span 100..200",
    ),
    "measured by nobody": (
        device("power_w", "300.0", "status: measured, source: a wattmeter"),
        "300.0",
        r"power_w 300: measured, but not by whom",
    ),
    "measured by somebody, but no measurement": (
        device("power_w", "300.0", f"by: me, {DATASHEET}"),
        "300.0",
        r"power_w 300: me measured it, but its status is datasheet",
    ),
    "an efficiency of what was reached already": (
        shipped("device", "m4-max-gpu", "kind: gpu\n", f"kind: gpu\nflops_efficiency: {{value: 0.5, {DATASHEET}}}\n"),
        "0.5",
        r"flops_efficiency 0.5: bf16_flops is what was reached already",
    ),
    "facts of shapes without a source": (
        "name: mine\nkind: npu\nstatic_shapes: true\n",
        "name: mine",
        r"facts_source: static shapes, prompt limits and weight formats need a source",
    ),
    "a chip without its memory": (
        shipped("platform", "x-elite", "devices: [gpu, npu, cpu]", "devices: [gpu, cpu]"),
        "  npu:",
        r"devices.npu: its sheet shares the memory 'x-elite', but it is in no memory pool",
    ),
    "two chips on one memory": (
        shipped("platform", "x-elite", "sheet: x-elite-hexagon", "sheet: lunar-lake-npu4"),
        "devices: [gpu, npu, cpu]",
        r"memory_pools.memory: devices of different memories share it: lunar-lake, x-elite",
    ),
    "nothing copied between two memories": (
        shipped("platform", "h100x2", "[gpu0, gpu1], sheet: nvlink-4", "[gpu0, gpu1], sheet: unified-memory"),
        "[gpu0, gpu1], sheet",
        r"links.0: nothing is copied between gpu0 and gpu1, but they share no memory",
    ),
    "two links in one direction": (
        PLATFORM + f"  - {{between: [gpu, npu], one_way: true, latency_s: {{value: 1.0e-5, {DATASHEET}}}}}\n",
        "name: mine",
        r"links in one direction repeat",
    ),
    "a device that no link reaches": (
        changed("kind: npu}", "kind: npu}\n  card: {name: a card, kind: gpu}"),
        "card",
        r"devices.card: no link leads to gpu and back",
    ),
    "an override of a sheet": (
        shipped("platform", "h100x2", "gpu1: {sheet: h100-sxm}", "gpu1: {sheet: h100-sxm, bf16_flops: 1.979e+15}"),
        "1.979e+15",
        r"devices.gpu1.bf16_flops 1.979e\+15: twice the published .*sparse",
    ),
    "a device that leads nowhere": (
        changed("between: [gpu, npu]", "between: [npu, gpu]\n    one_way: true"),
        "  npu:",
        r"devices.npu: no link leads to gpu and back",
    ),
    "an override of a link's sheet": (
        shipped("platform", "h100x2", "sheet: nvlink-4}", "sheet: nvlink-4, bytes_per_s: 9.0e+11}"),
        "9.0e+11",
        r"links.0.bytes_per_s 9e\+11: twice the published 4.5e\+11: both directions added up\?",
    ),
    "a bare number of a memory pool": (
        changed(f"    bytes_per_s: {{value: 1.0e+11, {DATASHEET}}}", "    bytes_per_s: 1.0e+11"),
        "bytes_per_s: 1.0e+11",
        r"memory_pools.memory.bytes_per_s 1e\+11: a bare number",
    ),
    "a price of a whole machine without a day": (
        PLATFORM + f"price_usd_per_hour: {{value: 2.5, {DATASHEET}}}\n",
        "value: 2.5",
        r"price_usd_per_hour 2.5: a price without the day it holds for",
    ),
    "an unknown field": (
        DEVICE + "flops: 1.0e+12\n",
        "flops",
        r"flops: Extra inputs are not permitted, found 1000000000000.0",
    ),
    "no YAML": ("name: [mine\n", "mine", r"not valid YAML"),
}


@pytest.mark.parametrize("mistake", CASES)
def test_each_class_of_mistakes_is_found_with_file_line_and_value(tmp_path: Path, mistake: str) -> None:
    text, part, complaint = CASES[mistake]
    found = [str(one) for one in findings(tmp_path, text, "bad.yaml")]
    matching = [one for one in found if re.search(complaint, one)]
    assert matching, found
    assert re.match(rf"{re.escape(str(tmp_path))}/bad\.yaml:\d+: ", matching[0])
    if mistake != "no YAML":
        assert matching[0].startswith(f"{tmp_path}/bad.yaml:{line_with(text, part)}: "), matching
