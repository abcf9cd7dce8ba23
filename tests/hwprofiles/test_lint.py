"""One bad file per class of mistakes: each is found on its line, with its value."""

import re
from pathlib import Path

import pytest

from hwprofiles.lint import Finding, lint_file
from hwprofiles.sheets import shipped_file

DATASHEET = "status: datasheet, source: somebody"
DEVICE = "name: mine\nkind: gpu\n"
PEAK = f"bf16_flops: {{value: 1.0e+14, {DATASHEET}}}"
PLATFORM = f"""name: mine
host: gpu
devices:
  gpu: {{name: a GPU, kind: gpu, {PEAK}, memory_bytes_per_s: {{value: 1.0e+11, {DATASHEET}}}}}
  npu: {{name: an NPU, {PEAK}, kind: npu}}
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


def changed(before: str, after: str, text: str = PLATFORM) -> tuple[str, str]:
    """A file with a mistake in it, and the last line of that."""
    assert text.count(before) == 1
    return text.replace(before, after), after.rpartition("\n")[2]


def shipped(kind, name: str, before: str, after: str) -> tuple[str, str]:
    return changed(before, after, shipped_file(kind, name).read_text())


def device(field: str, value: str, rest: str = DATASHEET) -> tuple[str, str]:
    return f"{DEVICE}{field}:\n  {{value: {value}, {rest}}}\n", value


def test_what_is_right_is_clean(tmp_path: Path) -> None:
    assert findings(tmp_path, PLATFORM) == []
    assert findings(tmp_path, device("bf16_flops", "1.0e+14")[0]) == []
    assert findings(tmp_path, f"{device('memory_bytes', '80 GiB')[0]}{PEAK}") == []
    rows = changed("[gpu, npu]\n    bytes", f"[gpu, npu]\n    memory_bytes: {quantity('128 GiB')}\n    bytes")
    assert findings(tmp_path, rows[0]) == []
    (bare,) = findings(tmp_path, f"{DEVICE}{PEAK}\nmemory_bytes: 80 GiB\n")
    assert bare.what.startswith("a bare number")


def quantity(value: str) -> str:
    return f"{{value: {value}, {DATASHEET}}}"


MISTAKES = {
    r"bf16_flops 1.979e.15: twice .* 9.89e.14: a sparse fig": shipped("device", "h100-sxm", "9.89e+14", "1.979e+15"),
    r"int8_ops 3.958e.15: twice the published .* sparse fig": (
        changed("value: 1.979e+15\n", "value: 3.958e+15\n", shipped_file("device", "h100-sxm").read_text())[0],
        "value: 3.958e+15",
    ),
    r"fp8_flops 3.958e.15: twice the published .* sparse fig": shipped(
        "device", "h100-sxm", "1.979e+15,", "3.958e+15,"
    ),
    r"int8_ops 8e.14: int8_ops over bf16_flops is 8, usually 2": (
        f"{DEVICE}bf16_flops: {quantity('1.0e+14')}\nint8_ops: {quantity('8.0e+14')}\n",
        "8.0e+14",
    ),
    r"memory_bytes_per_s 3.6834e.12: a little above the published 3.35e.12: 2\^40 used as tera\?": shipped(
        "device", "h100-sxm", "value: 3.35e+12", "value: 3.6834e+12"
    ),
    r"memory_bytes 8.58993e.10: exactly 80 x 2\^30: 2\^30 used as giga\?": device("memory_bytes", "8.589934592e+10"),
    r"bytes_per_s 4e.10: eight times the published 5e.09: bits taken for bytes\?": shipped(
        "link", "thunderbolt-4", "value: 5.0e+09", "value: 4.0e+10"
    ),
    r"int8_ops 1.2e.14: above the published 4.8e.13: operations of the whole platform counted": shipped(
        "device", "lunar-lake-npu4", "value: 4.8e+13", "value: 1.2e+14"
    ),
    r"memory_bytes_per_s 4e.12: above the published 2.039e.12$": shipped(
        "device", "a100-80-sxm", "value: 2.039e+12", "value: 4.0e+12"
    ),
    r"memory_bytes_per_s 4800: outside .*: other units than bytes per second\?": device("memory_bytes_per_s", "4800.0"),
    r"latency_s 1.5: outside 1e-08..0.005, .*: milli- and microseconds mixed\?": shipped(
        "link", "nvlink-4", "value: 1.5e-06\n  span: [1.0e-06, 2.0e-06]", "value: 1.5"
    ),
    r"memory_pools.memory.bytes_per_s 1e.11: above memory speed times bus width, which is 6.4e.10": changed(
        "[gpu, npu]\n    bytes",
        f"[gpu, npu]\n    transfers_per_s: {quantity('8.0e+9')}\n    bus_bits: {quantity('64.0')}\n    bytes",
    ),
    r"memory_pools.memory.bytes_per_s 2.048e.12: eight times the published 2.56e.11: bits taken for bytes\?": shipped(
        "platform", "strix-halo", "value: 2.56e+11", "value: 2048 GB/s"
    ),
    r"memory_pools.memory.bytes_per_s 2.75e.11: a little above the published 2.56e.11: 2\^30 used as giga\?": shipped(
        "platform", "strix-halo", "value: 2.56e+11", "value: 275 GB/s"
    ),
    r"devices.npu.memory_cap_bytes_per_s 2e.11: above the 1e.11 of its pool 'memory'": changed(
        "kind: npu", f"kind: npu, memory_cap_bytes_per_s: {quantity('2.0e+11')}"
    ),
    r"memory_cap_bytes_per_s 2e.11: the device's own cap is above the 1e.11 of its memory": (
        f"{DEVICE}memory_bytes_per_s: {quantity('1.0e+11')}\nmemory_cap_bytes_per_s: {quantity('2.0e+11')}\n",
        "2.0e+11",
    ),
    r"links.0.between.1: no device is called 'nqu'; there are gpu, npu": (
        changed("[gpu, npu]\n    latency", "[gpu, nqu]\n    latency")[0],
        "nqu",
    ),
    r"memory_pools.memory.devices.1: no .* called 'dsp'": (
        changed("[gpu, npu]\n    bytes", "[gpu, dsp]\n    bytes")[0],
        "dsp",
    ),
    r"power_w.source: Field required$": (f"{DEVICE}power_w: {{value: 100.0, status: datasheet}}\n", "100.0"),
    r"devices.npu.power_w 2: a bare number: say where it is from": changed("kind: npu", "kind: npu, power_w: 2.0"),
    r"price_usd_per_hour 2.5: a price without the day it holds for": device("price_usd_per_hour", "2.5"),
    r"power_w: value 300 is outside its span 100..200": device(
        "power_w", "300.0", f"span: [100.0, 200.0], {DATASHEET}"
    ),
    r"power_w 300: measured, but not by whom": device("power_w", "300.0", "status: measured, source: a wattmeter"),
    r"power_w 300: me measured it, but its status is datasheet": device("power_w", "300.0", f"by: me, {DATASHEET}"),
    r"bf16_flops: a gpu without it is refused: give its dense half-precision peak$": (
        f"{DEVICE}memory_bytes: {quantity('8 GB')}\n",
        "name: mine",
    ),
    r"flops_efficiency 0.5: bf16_flops is what was reached already": shipped(
        "device", "m4-max-gpu", "kind: gpu", f"kind: gpu\nflops_efficiency: {quantity('0.5')}"
    ),
    r"facts_source: static shapes, prompt limits and weight formats need a source": (
        "name: mine\nkind: npu\nstatic_shapes: true\n",
        "name: mine",
    ),
    r"devices.npu: its sheet shares the memory 'x-elite', but it is in no memory pool": (
        shipped("platform", "x-elite", "devices: [gpu, npu, cpu]", "devices: [gpu, cpu]")[0],
        "  npu:",
    ),
    r"memory_pools.memory: devices of different memories share it: lunar-lake, x-elite": (
        shipped("platform", "x-elite", "sheet: x-elite-hexagon", "sheet: lunar-lake-npu4")[0],
        "devices: [gpu, npu, cpu]",
    ),
    r"links.0: nothing is copied between gpu0 and gpu1, but they share no memory": shipped(
        "platform", "h100x2", "[gpu0, gpu1], sheet: nvlink-4", "[gpu0, gpu1], sheet: unified-memory"
    ),
    r"devices.card: no link leads to gpu and back": changed(
        "kind: npu}", "kind: npu}\n  card: {name: a card, kind: gpu}"
    ),
    r"devices.gpu1.bf16_flops 1.979e.15: twice the published .*sparse": shipped(
        "platform", "h100x2", "gpu1: {sheet: h100-sxm}", "gpu1: {sheet: h100-sxm, bf16_flops: 1.979e+15}"
    ),
    r"devices.npu: no link leads to gpu and back": (
        changed("between: [gpu, npu]", "between: [npu, gpu]\n    one_way: true")[0],
        "  npu:",
    ),
    r"links.0.bytes_per_s 9e.11: twice the published 4.5e.11: both directions added up\?": shipped(
        "platform", "h100x2", "sheet: nvlink-4}", "sheet: nvlink-4, bytes_per_s: 9.0e+11}"
    ),
    r"memory_pools.memory.bytes_per_s 1e.11: a bare number": changed(
        f"    bytes_per_s: {quantity('1.0e+11')}", "    bytes_per_s: 1.0e+11"
    ),
    r": price_usd_per_hour 2.5: a price without the day it holds for": (
        f"{PLATFORM}price_usd_per_hour: {quantity('2.5')}\n",
        "value: 2.5",
    ),
    r"memory_bytes_per_s: a number such as 80 GB/s or 8e9, found '100 Gb/s'$": (
        f"{DEVICE}memory_bytes_per_s: 100 Gb/s\n",
        "100 Gb/s",
    ),
    r"devices.npu.memory_bytes: a number such as 24 GB or 8e9, found '16 W'$": changed(
        "kind: npu}", "kind: npu, memory_bytes: 16 W}"
    ),
    r"flops: no field is called 'flops'; did you mean .* or bf16_flops.*, found 1000000000000.0": (
        f"{DEVICE}flops: 1.0e+12\n",
        "flops",
    ),
    r"devices.npu.power_w.sorce: no field is called 'sorce'; there are value, span, status, source": (
        changed("kind: npu", "kind: npu, power_w: {value: 2.0, status: guessed, source: me, sorce: me}")[0],
        "sorce",
    ),
    r"kind: Input should be 'cpu', 'gpu' or 'npu', found 'gpuu'$": (
        "name: mine\nkind: gpuu\nbf16_flops: 1e12\n",
        "gpuu",
    ),
    r"memory_bytes.value: Input should be greater than 0, found -3000000000.0$": (
        f"{DEVICE}memory_bytes: -3 GB\n",
        "-3 GB",
    ),
    r"static_shapes: Input should be a valid boolean, found 'no way'$": (f"{DEVICE}static_shapes: no way\n", "no way"),
    r"devices.npu: should be a map such as .sheet: NAME., found 'npu'$": changed(
        f"{{name: an NPU, {PEAK}, kind: npu}}", "npu"
    ),
    r"power_w: should be a number, or a map of value, status and source, found .1.0, 2.0.$": (
        f"{DEVICE}power_w: [1.0, 2.0]\n",
        "power_w",
    ),
    r"^[^ ]* chip: no chip is called 'rtx490'; did you mean rtx4090 or .*; leave it out where no public curves": (
        f"{DEVICE}chip: rtx490\n{PEAK}",
        "rtx490",
    ),
    r"devices.gpu.chip: no chip is called 'Foo 1'; there are .*; leave it out": changed(
        "name: a GPU", "chip: Foo 1, name: a GPU"
    ),
    r"maker: Input should be 'NVIDIA', 'AMD', .*found 'nvidia'$": (f"{DEVICE}maker: nvidia\n{PEAK}", "nvidia"),
    r"name: Input should be a valid string, found 3$": changed("name: mine", "name: 3"),
}
"""A file with a mistake, and the line it is in, by what is complained of."""


@pytest.mark.parametrize("complaint", MISTAKES)
def test_each_class_of_mistakes_is_found_with_file_line_and_value(tmp_path: Path, complaint: str) -> None:
    text, part = MISTAKES[complaint]
    found = [str(one) for one in findings(tmp_path, text, "bad.yaml")]
    matching = [one for one in found if re.search(complaint, one)]
    assert matching, found
    line = next(number for number, one in enumerate(text.splitlines(), 1) if part in one)
    assert matching[0].startswith(f"{tmp_path}/bad.yaml:{line}: "), matching


def test_a_file_that_is_no_yaml_is_a_finding(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, "name: [mine\n")
    assert re.match(rf"{re.escape(str(tmp_path))}/mine\.yaml:\d+: .*not valid YAML", str(found), re.DOTALL)
