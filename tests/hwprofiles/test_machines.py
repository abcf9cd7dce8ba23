"""A label means a device, and a device makes a machine; what means neither is told what is close."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError, ProfileError
from hwprofiles.curves.names import device_key
from hwprofiles.lint_rules import of_platform
from hwprofiles.machines import device_names
from hwprofiles.machines.device_names import NamedDevice, device_named, find_device
from hwprofiles.overrides import with_devices
from hwprofiles.platform import find_entry, load_platform
from hwprofiles.sheets import device_sheet, link_sheet, shipped_names

DEVICES = shipped_names("device")
LABELS = {
    "RTX 4090": ("rtx4090", 1, None),
    "NVIDIA GeForce RTX 4090": ("rtx4090", 1, None),
    "Apple M4 Max": ("m4-max-gpu", 1, None),
    "Radeon 8060S (Strix Halo), Windows": ("strix-halo-gpu", 1, None),
    "2x RTX 5060 Ti, tensor split": ("rtx5060ti", 2, None),
    "4x NVIDIA RTX 2080 Ti TP4": ("rtx2080ti", 4, None),
    "NVIDIA H100 PCIe 80 GB": ("h100-pcie", 1, None),
    "NVIDIA A100-SXM4-80GB": ("a100-80-sxm", 1, None),
    "A100": ("a100-80-sxm", 1, None),
    "Apple M3 Ultra 512 GB": ("m3-ultra-gpu", 1, 512e9),
    "m4 16gb": ("m4-gpu", 1, 16e9),
    "h100x2": ("h100-sxm", 2, None),
    "8x B300": ("b300-sxm", 8, None),
    "DGX Spark": ("gb10-gpu", 1, None),
    "MacBook Pro M4 Max 128GB": ("m4-max-gpu", 1, 128e9),
    "Mac mini M4 Pro": ("m4-pro-gpu", 1, None),
    "4090": ("rtx4090", 1, None),
    "2x3090": ("rtx3090", 2, None),
    "B580": ("arc-b580", 1, None),
    "H800": ("h800-sxm", 1, None),
    "8x GB200": ("gb200", 8, None),
    "Jetson AGX Thor": ("jetson-thor-gpu", 1, None),
    "Intel Arc Pro B60 24GB": ("arc-pro-b60", 1, 24e9),
    "RTX 4090 Laptop GPU": ("rtx4090-laptop", 1, None),
    "NVIDIA GeForce RTX 4060 Laptop GPU": ("rtx4060-laptop", 1, None),
    "RTX 3070 Mobile": ("rtx3070-laptop", 1, None),
    "Radeon RX 580 8GB": ("rx580", 1, None),
    "Steam Deck OLED": ("steam-deck-gpu", 1, None),
    "Intel N100": ("intel-n100", 1, None),
    "Emerald Rapids": ("xeon-8592", 1, None),
    "i5-12400F": ("core-i5-12400", 1, None),
    "Core i5-12400 DDR5": ("core-i5-12400-ddr5", 1, None),
    "Surface Laptop 7 32 GB": ("surface-laptop-gpu", 1, 32e9),
    "Snapdragon X2 Elite NPU": ("x2-elite-hexagon", 1, None),
    "Ryzen AI Max+ 395": ("strix-halo-gpu", 1, None),
    "RTX 3080 12GB": ("rtx3080-12gb", 1, None),
    "2x RTX 3060 8GB": ("rtx3060-8gb", 2, None),
    "RTX 3050 6GB": ("rtx3050-6gb", 1, None),
    "Arc A770 8GB": ("arc-a770-8gb", 1, None),
    "8 H100 GPUs": ("h100-sxm", 8, None),
    "4 A100s": ("a100-80-sxm", 4, None),
    "H100 TP8": ("h100-sxm", 8, None),
    "DGX B200": ("b200-sxm", 8, None),
    "H100 (8x)": ("h100-sxm", 8, None),
    "TPU v6e-8": ("tpu-v6e", 8, None),
    "v6e-8": ("tpu-v6e", 8, None),
    "TPU v7x-8 (TP8)": ("tpu-v7", 4, None),
    "TPU7x-8": ("tpu-v7", 4, None),
    "v7x-8": ("tpu-v7", 4, None),
    "NVIDIA A100-SXM4-40GB": ("a100-40-sxm", 1, None),
    "NVIDIA A100 80GB PCIe": ("a100-80-pcie", 1, None),
    "H100-80GB-PCIe": ("h100-pcie", 1, 80e9),
    "M4 Max (32-core GPU)": ("m4-max-gpu", 1, 36e9),
}


@pytest.mark.parametrize(("label", "found"), LABELS.items())
def test_a_label_means_a_device(label, found):
    assert device_named(label) == found


def test_a_label_that_names_two_devices_is_refused():
    with pytest.raises(ProfileError, match="names 2 devices, where one is meant"):
        device_named("rtx4090,m4-max")


@pytest.mark.parametrize("label", ["TPU v6e-256", "TPU v7x-256", "TPU7x-4096"])
def test_a_pod_is_more_than_a_machine(label):
    with pytest.raises(ProfileError, match=f"{label!r}: a machine has 1 to 16 devices of a kind"):
        device_named(label)


@given(st.sampled_from(DEVICES), st.integers(2, 16), st.sampled_from(["x", " x ", "×"]))
def test_a_sheet_is_found_by_its_id_in_any_spelling_and_number(name, count, times):
    assert find_device(name.replace("-", " ").upper()) == (name, 1, None)
    assert find_device(f"{count}{times}{name}") == (name, count, None)


@pytest.mark.parametrize("name", DEVICES)
def test_a_sheet_is_found_by_its_name(name):
    assert find_device(device_sheet(name).name).sheet == name


@pytest.mark.parametrize("label", ["CUDA, full offload", "GPU not named (vLLM PR 24700)", "AMD MI300 class", "", "gpu"])
def test_what_names_no_device_is_none(label):
    assert find_device(label) is None


def test_every_alias_is_of_one_device():
    aliases = [(alias, name) for name in DEVICES for alias in device_sheet(name).aliases]
    assert [(alias, name) for alias, name in aliases if find_device(alias).sheet != name] == []


@pytest.mark.parametrize("name", [name for name in DEVICES if device_sheet(name).memory_bytes_per_s is not None])
def test_every_device_makes_a_machine_that_the_linter_trusts(name):
    machine = load_platform(name)
    assert [one for one in of_platform(machine) if "bare number" not in one.what] == []
    assert name in [device.sheet for device in machine.devices.values()]
    assert machine.device(machine.host).kind == "cpu"


def test_small_cards_have_eight_lanes():
    small, large = (load_platform(name).link("cpu", "gpu") for name in ("rtx4060ti", "rtx4090"))
    assert small.bytes_per_s.value == large.bytes_per_s.value / 2


def test_two_cards_speak_over_the_cpu_and_two_of_a_server_by_themselves():
    pair, server = load_platform("2xrtx3090"), load_platform("4x h100")
    assert pair.groups == {"gpus": ("gpu0", "gpu1")}
    assert pair.path("gpu0", "gpu1") == ("gpu0", "cpu", "gpu1")
    assert pair.link("cpu", "gpu0").bytes_per_s == link_sheet("pcie-4-x16").bytes_per_s
    assert server.path("gpu0", "gpu3") == ("gpu0", "gpu3")
    assert server.link("gpu0", "gpu3").bytes_per_s == link_sheet("nvlink-4").bytes_per_s


def test_a_bridge_joins_two_cards_and_the_rest_of_four_speak_over_the_cpu():
    bridged = load_platform("4x h100-nvl")
    paths = [bridged.path("gpu0", f"gpu{index}") for index in (1, 2, 3)]
    assert paths == [("gpu0", "gpu1"), ("gpu0", "cpu", "gpu2"), ("gpu0", "cpu", "gpu3")]
    assert bridged.path("gpu2", "gpu3") == ("gpu2", "gpu3")
    assert load_platform("3x h100-nvl").path("gpu1", "gpu2") == ("gpu1", "cpu", "gpu2")


@pytest.mark.parametrize(("label", "bytes_per_s"), [("8x H800", 2e11), ("4x A800", 2e11), ("8x H100", 4.5e11)])
def test_servers_for_export_have_slower_links_and_else_the_same_cards(label, bytes_per_s):
    assert load_platform(label).link("gpu0", "gpu1").bytes_per_s.value == bytes_per_s
    own, other = (device_sheet(find_device(one).sheet) for one in (label, label.replace("800", "100")))
    numbers = (
        "bf16_flops int8_ops memory_bytes_per_s memory_bytes power_w memory_efficiency kernel_start_s unhidden_share"
    )
    for field in numbers.split():
        assert getattr(own, field).value == getattr(other, field).value
    assert device_key(own.name) == device_key(other.name), "curves of one are of the other"


@pytest.mark.parametrize("name", [name for name in DEVICES if device_sheet(name).peer_link])
def test_two_cards_with_a_link_of_their_own_make_a_machine(name):
    machine = load_platform(f"2x{name}")
    kind = device_sheet(name).kind
    assert machine.groups == {f"{kind}s": (f"{kind}0", f"{kind}1")}
    assert machine.transfer_s(f"{kind}0", f"{kind}1", 0) > 0


def test_a_chip_that_ships_is_its_platform_and_another_shares_its_memory():
    assert load_platform("lunar-lake-npu4") == load_platform("lunar-lake")
    assert [*load_platform("Apple M2 Ultra").devices] == ["npu", "cpu", "gpu"]
    mac = load_platform("Apple M4 24 GB")
    assert mac.pool_of("gpu") == mac.pool_of("cpu")
    assert mac.pool_of("gpu")[1].memory_bytes.value == 24e9
    assert mac.pool_of("gpu")[1].bytes_per_s == device_sheet("m4-gpu").memory_bytes_per_s


@pytest.mark.parametrize(
    ("label", "bytes_per_s", "cores"),
    [("M3 Max 36GB", 300e9, 30), ("M4 Max 36GB", 410e9, 32), ("M5 Max 36GB", 460e9, 32)],
)
def test_a_chip_that_is_sold_with_fewer_cores_computes_and_reads_less(label, bytes_per_s, cores):
    mac, whole = load_platform(label), device_sheet(f"{label[:2].lower()}-max-gpu")
    pool, gpu = mac.pool_of("gpu")[1], mac.devices["gpu"]
    assert (pool.memory_bytes.value, pool.bytes_per_s.value) == (36e9, bytes_per_s)
    assert gpu.bf16_flops.value == pytest.approx(whole.bf16_flops.value * cores / 40)
    assert f"({cores} cores)" in gpu.name
    assert gpu.name in mac.name
    assert device_named(label).own_sheet.bf16_flops == gpu.bf16_flops


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("rtx4095", "no platform is called 'rtx4095'; did you mean rtx4090"),
        ("Jetson Orin", "did you mean jetson-orin-nx-gpu or jetson-agx-orin-gpu or jetson-orin-nano-gpu"),
        ("0xh100", "'0xh100': a machine has 1 to 16 devices"),
        ("99xh100", "'99xh100': a machine has 1 to 16 devices"),
        ("rtx3090 0gb", "'rtx3090 0gb': a device has more than 0 GB"),
        ("2xm3-ultra", "are as many machines: describe their links"),
        ("2x epyc", "sockets"),
        ("generic-cpu", "gives no memory_bytes_per_s: give a platform"),
        ("server-cpu-core", "gives no memory_bytes_per_s: give a platform"),
    ],
)
def test_what_makes_no_machine_says_why(label, told):
    with pytest.raises(ProfileError, match=told):
        load_platform(label).pool_of("cpu")


def test_several_cpus_do_not_take_the_place_of_the_assumed_one():
    with pytest.raises(ProfileError, match="several of AMD EPYC 9654.*links of their sockets"):
        with_devices(load_platform("rtx4070"), ["2xepyc-9654"])


def test_an_entry_is_found_by_a_label():
    assert find_entry("GeForce RTX 3090").name == "rtx3090"


def test_an_entry_has_the_memory_that_its_label_tells():
    assert find_entry("RTX 3080 20GB").content.memory_bytes.value == 20e9


def test_a_sheet_of_ones_own_makes_a_machine_with_numbers_as_people_write_them(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{name: Mine, kind: npu, memory_bytes_per_s: 80 GB/s, memory_bytes: 16 GB, bf16_flops: 25 TFLOPS}")
    machine = load_platform(str(path))
    assert machine.host == "cpu"
    assert machine.device("npu").memory_bytes_per_s.value == 80e9
    assert machine.device("npu").bf16_flops.status == "guessed"
    assert with_devices(load_platform("rtx4090"), [str(path)]).device("mine").memory_bytes.value == 16e9


def test_a_sheet_of_ones_own_that_cannot_stand_in_a_machine_is_refused_with_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{name: Mine, kind: gpu, host_link: rope, memory_bytes_per_s: 80 GB/s}")
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*link sheet.* 'rope'"):
        load_platform(str(path))


def test_an_id_is_told_without_reading_the_sheets_of_all_devices(monkeypatch):
    monkeypatch.setattr(device_names, "_by_key", lambda: pytest.fail("reads all sheets"))
    assert [find_device(label) for label in ("rtx4090", "2xrtx3090")] == [
        NamedDevice("rtx4090"),
        NamedDevice("rtx3090", 2),
    ]
