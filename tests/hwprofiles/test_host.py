from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwprofiles import host
from hwprofiles.host import LaneCores, available_cores, computing_host, describe_host, differences, split_lanes
from hwprofiles.lane_cores import split_pairs, whole_lanes


@pytest.mark.parametrize("count", range(2, 10))
def test_many_cores_are_split_in_halves_that_do_not_overlap(count: int) -> None:
    first, second, both = split_lanes(range(count))
    assert first.cores + second.cores == both.cores == tuple(range(count))
    assert len(first.cores) - len(second.cores) in (0, 1)
    assert all(lane.num_threads == len(lane.cores) for lane in (first, second, both))


def test_one_core_is_one_lane() -> None:
    assert split_lanes((3,)) == (LaneCores(name="cpu0", cores=(3,)),)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine made of files: `machine(allowed, siblings=..., quota=...)`."""

    def build(allowed: set[int], siblings: dict[int, str] | None = None, quota: str | None = None) -> None:
        monkeypatch.setattr(host.os, "sched_getaffinity", lambda _pid: allowed, raising=False)
        monkeypatch.setattr(host, "_CPU_FOLDER", tmp_path)
        monkeypatch.setattr(host, "_CGROUP_QUOTA", tmp_path / "cpu.max")
        for core, text in (siblings or {}).items():
            folder = tmp_path / f"cpu{core}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        if quota is not None:
            (tmp_path / "cpu.max").write_text(f"{quota}\n")

    return build


@pytest.mark.parametrize(
    ("allowed", "siblings", "cores"),
    [
        ({5, 1, 3}, {}, (1, 3, 5)),
        ({0, 1, 4, 5}, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}, (0, 1)),
        ({0, 1, 2, 3}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (0, 2)),
        ({0, 1}, {0: "0-1", 1: "0-1"}, (0, 1)),
        ({4, 5}, {4: "0,4", 5: "1,5"}, (4, 5)),
    ],
    ids=["nothing is told", "pairs", "ranges", "a lone physical core", "siblings that are not allowed"],
)
def test_a_physical_core_is_used_once(machine, allowed, siblings, cores) -> None:
    machine(allowed, siblings)
    assert available_cores() == cores


@pytest.mark.parametrize(("quota", "count"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 4)])
def test_a_container_quota_limits_the_cores(machine, quota: str, count: int) -> None:
    machine({0, 1, 2, 3}, quota=quota)
    assert len(available_cores()) == count


XEON = {"cpu_model": "Xeon", "instruction_sets": "amx_bf16 avx2", "cores": [0, 1], "torch": "2.9", "openvino": "2025.3"}


def test_this_machine_is_this_machine() -> None:
    assert differences(describe_host(["cpu", "openvino:CPU"])) is None
    assert differences(computing_host("openvino:CPU")) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu_model": "EPYC", "instruction_sets": "avx2"}, "processor Xeon, here EPYC"),
        ({"instruction_sets": "avx2"}, "instruction sets amx_bf16 avx2, here avx2"),
        ({"cores": [0, 1, 2]}, "number of cores 2, here 3"),
        ({"gpu": "NVIDIA L4"}, "GPU NVIDIA H100, here NVIDIA L4"),
        ({"torch": "3.0", "openvino": "2026.0"}, "PyTorch 2.9, here 3.0; OpenVINO 2025.3, here 2026.0"),
    ],
)
def test_another_machine_is_told_by_what_decides(changes: dict[str, object], words: str) -> None:
    assert differences(XEON | {"gpu": "NVIDIA H100"}, here=XEON | {"gpu": "NVIDIA H100"} | changes) == words


def test_what_decides_nothing_or_is_not_known_makes_no_other_machine() -> None:
    """Another container on the same processor: other cores of as many, other limits, another kernel."""
    here = XEON | {"cores": [6, 7], "memory_gb": 8.0, "system": "Linux 7", "python": "3.12", "fingerprint": "ab"}
    assert differences(XEON, here=here) is None
    assert differences({"cpu_model": "Xeon"}, here=here) is None
    assert differences({"carried_to": "lunar-lake.cpu", "measured_on": XEON}, here=here) is None
    assert differences(XEON | {"openvino": None}, here=here) is None


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver's program: `driver(names)`, which fails without names."""

    def installed(*names: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\n" + "".join(f"echo {name}\n" for name in names) + f"exit {int(not names)}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        host._gpus.cache_clear()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield installed
    host._gpus.cache_clear()


def test_the_gpu_is_named_where_lanes_are_on_one(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver("NVIDIA L4", "NVIDIA H100")
    assert computing_host("cuda:1")["gpu"] == "NVIDIA H100"
    assert describe_host(["cpu", "cuda:0"])["gpu"] == "NVIDIA L4"
    assert "gpu" not in describe_host(["cpu"])
    assert describe_host(["cuda:2"])["gpu"] is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert describe_host(["cuda:0"])["gpu"] == "NVIDIA H100"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ab")
    assert describe_host(["cuda:0"])["gpu"] is None


def test_a_gpu_that_is_not_here_makes_another_machine_and_any_that_is_does_not(driver) -> None:
    driver("NVIDIA L4", "NVIDIA H100")
    measured = computing_host("cuda:1")
    assert differences(measured) is None
    assert differences(measured | {"gpu": "NVIDIA A100"}) == "GPU NVIDIA A100, here NVIDIA L4"
    driver()
    assert describe_host(["cuda:0"])["gpu"] is None
    assert differences(measured) is None, "what is not known makes no other machine"


def test_a_library_is_named_where_lanes_compute_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "openvino" not in describe_host(["cpu", "cuda:0"])
    assert describe_host(["cpu", "openvino:CPU"])["openvino"] == host._version("openvino")
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: EPYC\nflags\t\t: fpu avx2 avx512f amx_bf16\nmodel name\t: other\n")
    monkeypatch.setattr(host, "_CPU_INFO", info)
    assert describe_host()["cpu_model"] == "EPYC"
    assert describe_host()["instruction_sets"] == "amx_bf16 avx2 avx512f"
    assert "cores" not in computing_host("cpu")


def test_compiled_lanes_have_the_cores_of_those_of_torch_and_of_one_core_there_is_one(monkeypatch) -> None:
    monkeypatch.setattr(host, "available_cores", lambda: (4, 7))
    eager, compiled = host.lanes_of("cpu"), host.lanes_of("openvino:CPU")
    assert [lane.name for lane in eager] == ["cpu0", "cpu1", "cpu0+1"]
    assert [lane.name for lane in compiled] == ["openvino:CPU@0", "openvino:CPU@1", "openvino:CPU"]
    assert [lane.cores for lane in eager] == [lane.cores for lane in compiled]
    assert host.lanes_of("openvino:NPU") == (LaneCores(name="openvino:NPU", cores=(7,)),)
    assert host.lanes_of("cuda:1") == (
        LaneCores(name="cuda:1", cores=(7,)),
        LaneCores(name="cuda:1#2", cores=(4,)),
    )
    monkeypatch.setattr(host, "available_cores", lambda: (3,))
    assert [lane.name for lane in host.lanes_of("openvino:CPU")] == ["openvino:CPU@0"]


SETS_OF_LANES = st.lists(st.frozensets(st.integers(0, 5), max_size=4), min_size=1, max_size=5).map(
    lambda sets: tuple(LaneCores(name=f"lane{place}", cores=tuple(sorted(cores))) for place, cores in enumerate(sets))
)


@given(SETS_OF_LANES)
def test_lanes_without_a_common_core_are_paired_both_ways_and_whole_ones_have_all_cores(lanes) -> None:
    cores = {lane.name: set(lane.cores) for lane in lanes}
    expected = {(one, two) for one in cores for two in cores if one != two and cores[one].isdisjoint(cores[two])}
    assert set(split_pairs(lanes)) == expected
    whole = whole_lanes(lanes)
    assert set().union(*(cores[name] for name in whole)) == set().union(*cores.values())
    assert {lane.name for lane in lanes if not lane.cores} <= set(whole)
