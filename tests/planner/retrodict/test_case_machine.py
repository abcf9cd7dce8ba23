"""The machine that a case's label means."""

import csv
from pathlib import Path

import pytest

import planner.retrodict
from decoding.errors import ProfileError
from hwprofiles.sheets import device_sheet, shipped_names
from planner.retrodict.case_machine import case_machine

RTX_3090, RTX_4090, M4_MAX = "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "Apple M4 Max GPU (40 cores)"
STRIX_HALO = "AMD Ryzen AI Max GPU (Radeon 8060S)"


@pytest.mark.parametrize(
    ("label", "name", "num_devices", "memory_gb"),
    [
        ("Ryzen 9 7950X + RTX 4090", RTX_4090, 1, 24),
        ("RTX 4090 24GB + i9-14900K, experts in host memory", RTX_4090, 1, 24),
        ("Xeon Gold 6242 + 2x RTX 3090", RTX_3090, 2, 24),
        ("EPYC 9654 + RTX 4090 + RTX 3090", RTX_3090, 2, 24),
        ("EPYC 9654 + RTX 4090 + 3x RTX 3090 20GB", RTX_3090, 4, 21),
        ("Ryzen 9 7950X, RTX 4090 48GB", RTX_4090, 1, 48),
        ("EPYC 9654, 512 GB RAM, dual RTX 3090 (TP2)", RTX_3090, 2, 24),
        ("2x EPYC 9654 (RTX 4090)", RTX_4090, 1, 24),
        ("i9-14900K, CMP 50HX", "CMP 50HX", 1, 6),
        ("Ryzen 7 8845HS + RTX 4090", RTX_4090, 1, 24),
        ("Ryzen AI Max+ 395 64GB + Radeon 8060S", STRIX_HALO, 1, 64),
        ("Ryzen AI Max+ 395, Radeon 8060S", STRIX_HALO, 1, 128),
        ("Arc 140V + Core Ultra 7 258V", "Intel Lunar Lake GPU (Arc 140V)", 1, 32),
        ("RTX 3090, 64 GB RAM", RTX_3090, 1, 24),
        ("RTX 3090, 32 GB DRAM", RTX_3090, 1, 24),
        ("RTX 3090, 32GB ECC DDR4", RTX_3090, 1, 24),
        ("RTX 3090, 32 GB LPDDR5", RTX_3090, 1, 24),
        ("RTX 3090, 32GB of system RDIMM", RTX_3090, 1, 24),
        ("RTX 3090, 64 GB memory, 20 GB GDDR6X", RTX_3090, 1, 20),
        ("CMP 170HX 64GB, 128 GB", "NVIDIA CMP 170HX", 1, 64),
        ("RTX 4090 48GB CPU offload", RTX_4090, 1, 48),
        ("RTX 4090 48GB system", RTX_4090, 1, 48),
        ("Dual RTX 3090", RTX_3090, 2, 24),
        ("EPYC 9654 + quad NVIDIA RTX 3090", RTX_3090, 4, 24),
        ("DDR5 128GB, RTX 4090 48 GB", RTX_4090, 1, 48),
        ("2x RTX 3090 24GB + 512 GiB of system memory", RTX_3090, 2, 24),
        ("RTX 3090 20 GB VRAM", RTX_3090, 1, 20),
        ("M4 Max, 64 GB RAM", M4_MAX, 1, 64),
        ("Ryzen 9 9950X, 96 GB RAM", "AMD Ryzen 9 9950X with DDR5-5600", 1, 96),
        ("Ryzen 9 9950X", "AMD Ryzen 9 9950X with DDR5-5600", 1, 64),
    ],
)
def test_a_machine_with_cards_is_told_by_these_and_their_memory(label, name, num_devices, memory_gb):
    found = case_machine(label, "llama.cpp CUDA")
    assert (found.sheet.name, found.num_devices) == (name, num_devices)
    assert found.sheet.memory_bytes is not None
    assert found.sheet.memory_bytes.value == memory_gb * 1e9
    assert found.is_throttled == (" + RTX 4090 + " in label), "several kinds are as fast as the slowest"


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("H800 SXM5", "NVIDIA H800 SXM"),
        ("8x H800-SXM5-80GB", "NVIDIA H800 SXM"),
        ("A800 80GB PCIe", "NVIDIA A100 (PCIe, 80 GB)"),
        ("8x H800 PCIe", "NVIDIA H100 (PCIe, 80 GB)"),
    ],
)
def test_a_card_for_export_is_none_of_those_with_faster_links(label, name):
    assert case_machine(label, "vLLM").sheet.name == name


@pytest.mark.parametrize(
    ("label", "engine", "num_together"),
    [
        ("8x H100, tp2", "vLLM", 2),
        ("8x H100, TP=4", "llama.cpp", 4),
        ("2x H100 TP1", "vLLM", 1),
        ("8x H100 (tensor parallel 8)", "vLLM", 8),
        ("4x H100, tp 3", "vLLM", 4),
        ("8x H100, --tensor-parallel-size=2", "vLLM", 2),
        ("8x H100, tp_size: 2", "vLLM", 2),
        ("8x H100 (2-way tensor parallel)", "vLLM", 2),
        ("8x H100, tensor parallelism of 2", "llama.cpp", 2),
        ("8x H100, TP over NVLink 4", "vLLM", 8),
        (f"2x RTX 4090 TP{'9' * 5000}", "llama.cpp", 2),
        ("2x RTX 3090, tensor split", "llama.cpp", 2),
        ("2x RTX 3090 tensor_split", "llama.cpp", 2),
        ("2x RTX 3090 (layer split)", "llama.cpp", 1),
        ("8x H100", "SGLang", 8),
        ("8x H100", "LMDeploy", 8),
        ("8x H100", "", 8),
        ("8x H100", "gpt-fast", 8),
        ("8x Ascend 910B2", "vLLM", 8),
        ("8x H100", "llama.cpp", 1),
        ("8x H100", "transformers", 1),
        ("2x RTX 4090", "exllamav2", 1),
        ("2x RTX 4090", "LMDeploy", 2),
        ("8x H100, PP8", "vLLM", 1),
        ("8x H100, TP4 PP2", "vLLM", 4),
    ],
)
def test_as_many_share_a_layer_as_the_label_tells(label, engine, num_together):
    found = case_machine(label, engine)
    assert found.num_together == num_together
    assert found.num_devices == int(label[0]), "memory is of all"


def test_a_draft_beside_its_target_has_a_device_of_its_own():
    labels = "2x H100", "5x H100", "5x H100, TP4", "6x H100, TP4", "8x H100, TP4", "8x H100, TP8"
    found = [case_machine(label, "vLLM", drafts_apart=True).num_together for label in labels]
    assert found == [1, 4, 4, 4, 4, 8]


@pytest.mark.parametrize(
    ("label", "num_devices", "is_stand_in"),
    [
        ("H100 TP8", 8, False),
        ("H100 (tp=4)", 4, False),
        ("H100, tensor parallel 8", 8, False),
        ("8 H100 GPUs", 8, False),
        ("8xH100s", 8, False),
        ("4 L40S", 4, False),
        ("H100 (8x)", 8, False),
        ("H100 SXM, 8 GPUs", 8, False),
        ("DGX H100", 8, False),
        ("DGX H100 TP4", 8, False),
        ("2x A6000 NVLink", 2, False),
        ("2 nodes of 8x H800", 16, True),
        ("2x 8x H20 (TP16)", 16, True),
        ("16x H20 (2 nodes)", 16, True),
        ("2x DGX H100", 16, True),
        ("EVO X2", 1, False),
        ("24 GB RTX 3090", 1, False),
        ("RTX 3090, PCIe x4", 1, False),
        ("Apple M4 (10 GPU cores)", 1, False),
        ("M4 Max (14-core CPU)", 1, False),
    ],
)
def test_devices_are_counted_as_people_write_them_and_nodes_are_told_in_ratios_alone(label, num_devices, is_stand_in):
    found = case_machine(label, "vLLM")
    assert (found.num_devices, found.is_stand_in) == (num_devices, is_stand_in)


@pytest.mark.parametrize(
    ("label", "bytes_per_s", "memory_gb"),
    [
        ("NVIDIA A100-SXM4-40GB", 1555e9, 40),
        ("NVIDIA A100 80GB PCIe", 1935e9, 80),
        ("H100-80GB-PCIe", 2000e9, 80),
        ("NVIDIA H100 80GB PCIe", 2000e9, 80),
        ("M3 Max 36GB", 300e9, 36),
        ("M3 Max / 64GB", 400e9, 64),
        ("Mac Studio (M4 Max, 36GB)", 410e9, 36),
        ("M4 Max (14-core CPU, 32-core GPU)", 410e9, 36),
        ("M4 Max (16-core CPU, 40-core GPU)", 546e9, 128),
        ("M5 Max 36GB", 460e9, 36),
    ],
)
def test_cards_of_a_name_with_other_memories_read_as_fast_as_these(label, bytes_per_s, memory_gb):
    sheet = case_machine(label, "").sheet
    assert (sheet.memory_bytes_per_s.value, sheet.memory_bytes.value) == (bytes_per_s, memory_gb * 1e9)


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("0x H100", "a machine has at least one device"),
        ("0x RTX 3090 TP2", "a machine has at least one device"),
        ("0x H100 + 0x RTX 3090", "a machine has at least one device"),
        ("0x EPYC 9654", "a machine has at least one device"),
    ],
)
def test_no_device_is_refused(label, reason):
    with pytest.raises(ProfileError) as refused:
        case_machine(label, "vllm")
    assert str(refused.value).startswith(repr(label))
    assert str(refused.value).endswith(reason)


def test_an_engine_on_the_cpu_is_not_taken_off_it():
    found = case_machine("Ryzen 9 7950X + RTX 4090", "llama.cpp CPU")
    assert (found.sheet.kind, found.num_devices, found.is_throttled) == ("cpu", 1, False)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("AMD EPYC 9374F", "AMD EPYC 9654 (one socket)"),
        ("EPYC 73F3, 512 GB RAM", "AMD EPYC 7742 (one socket)"),
        ("4x Xeon Gold 6242 (64 cores, DDR4)", "Intel Xeon E5-2683 v4 (one socket)"),
        ("Dual Xeon Platinum 8592+", "Intel Xeon Platinum 8592+ (one socket)"),
        ("Xeon Platinum 8468", "Intel Xeon Platinum 8480+ (one socket)"),
        ("Intel Xeon 6787P", "Intel Xeon 6980P (one socket)"),
        ("Core i5-12600K", "Intel Core i9-12900K with DDR5-4800"),
        ("Ryzen 7 7840U", "AMD Ryzen 9 7940HS CPU"),
        ("Threadripper 5965WX", "AMD EPYC 7742 (one socket)"),
        ("AWS Graviton3", "AWS Graviton4 (one socket)"),
        ("NVIDIA Grace CPU Superchip", "AWS Graviton4 (one socket)"),
        ("2x EPYC 9654", "AMD EPYC 9654 (one socket)"),
    ],
)
def test_a_cpu_without_a_sheet_and_several_sockets_are_told_by_one_like_them_in_ratios_alone(label, name):
    found = case_machine(label, "llama.cpp CPU")
    like = next(sheet for one in shipped_names("device") if (sheet := device_sheet(one)).name == name)
    assert (found.is_stand_in, found.num_together) == (True, 1)
    assert found.sheet.memory_bytes_per_s == like.memory_bytes_per_s


def test_the_gpu_or_npu_beside_a_cpu_that_is_named_alone_is_not_the_cpu():
    assert case_machine("Core Ultra 7 155H", "llama.cpp").sheet.kind == "cpu"
    with pytest.raises(ProfileError, match="no shipped device is called 'Core Ultra 7 155H'"):
        case_machine("Core Ultra 7 155H", "llama.cpp Vulkan")


@pytest.mark.parametrize(
    ("label", "engine"),
    [
        ("NVIDIA Grace Hopper", "vllm"),
        ("Grace-Blackwell", "llama.cpp"),
        ("Ryzen AI Max+ 395", "llama.cpp CPU"),
        ("Strix Halo", "llama.cpp CPU"),
    ],
)
def test_no_cpu_stands_in_for_a_gpu_or_for_one_with_twice_its_channels(label, engine):
    with pytest.raises(ProfileError, match="no shipped (device|sheet)"):
        case_machine(label, engine)


def test_every_cpu_that_stands_in_for_others_ships_with_its_bandwidth():
    with (Path(planner.retrodict.__file__).parent / "cpu-kin.csv").open(encoding="utf-8", newline="") as file:
        sheets = [device_sheet(line["sheet"]) for line in csv.DictReader(file)]
    assert all(one.kind == "cpu" and one.memory_bytes_per_s is not None for one in sheets)


@pytest.mark.parametrize(
    ("label", "engine", "name"),
    [
        ("Core Ultra 7 258V", "llama.cpp CPU", "Intel Lunar Lake CPU (258V, 4 + 4 cores)"),
        ("Core Ultra 7 258V", "OpenVINO NPU", "Intel Lunar Lake NPU 4"),
        ("Snapdragon X Elite", "llama.cpp Hexagon", "Qualcomm Snapdragon X Elite NPU (Hexagon)"),
        ("Apple M2 Ultra CPU", "llama.cpp", "Apple M2 Ultra CPU (16 + 8 cores)"),
        ("Apple M4 Max ANE", "CoreML", "Apple M4 Neural Engine (16 cores), in an M4 Max"),
        ("Ryzen AI Max+ 395 NPU", "FastFlowLM", "AMD Ryzen AI Max NPU (XDNA2)"),
        ("Ryzen AI 9 HX 370", "llama.cpp CPU", "Ryzen AI 9 HX 370"),
        ("M4 Max, 16-core CPU", "LM Studio", M4_MAX),
        ("M4 Max (16-core CPU, 40-core GPU)", "MLX", M4_MAX),
        ("M4 Max, experts on CPU", "llama.cpp Metal", M4_MAX),
    ],
)
def test_of_a_chip_that_part_runs_which_label_or_engine_names(label, engine, name):
    assert case_machine(label, engine).sheet.name == name


@pytest.mark.parametrize(
    ("label", "engine"),
    [("Apple M4 Pro ANE", "CoreML"), ("GB10", "llama.cpp CPU")],
)
def test_a_part_of_a_chip_that_has_no_sheet_is_not_told_by_another(label, engine):
    with pytest.raises(ProfileError, match="no shipped sheet is of the (CPU|NPU) of"):
        case_machine(label, engine)
