from pathlib import Path

import pytest

from hwprofiles import host
from hwprofiles.host import LaneCores, available_cores, describe_host, fingerprint, split_lanes


def test_two_cores_give_a_lane_each_and_one_for_both() -> None:
    assert split_lanes((4, 7)) == (
        LaneCores(name="cpu0", cores=(4,), num_threads=1),
        LaneCores(name="cpu1", cores=(7,), num_threads=1),
        LaneCores(name="cpu0+1", cores=(4, 7), num_threads=2),
    )


@pytest.mark.parametrize("count", range(2, 10))
def test_many_cores_are_split_in_halves_that_do_not_overlap(count: int) -> None:
    first, second, both = split_lanes(range(count))
    assert first.cores + second.cores == both.cores == tuple(range(count))
    assert len(first.cores) - len(second.cores) in (0, 1)
    assert all(lane.num_threads == len(lane.cores) for lane in (first, second, both))


def test_one_core_is_one_lane() -> None:
    assert split_lanes((3,)) == (LaneCores(name="cpu0", cores=(3,), num_threads=1),)


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


def test_a_machine_that_tells_nothing_offers_every_allowed_core(machine) -> None:
    machine({5, 1, 3})
    assert available_cores() == (1, 3, 5)


@pytest.mark.parametrize("lists", [("0,4", "1,5"), ("0-1", "2-3")])
def test_a_physical_core_is_used_once(machine, lists: tuple[str, str]) -> None:
    siblings = {int(c): text for text in lists for c in text.replace("-", ",").split(",")}
    machine(set(siblings), siblings)
    assert available_cores() == tuple(sorted(int(text[0]) for text in lists))


def test_a_lone_physical_core_is_used_as_the_two_logical_ones_it_has(machine) -> None:
    machine({0, 1}, {0: "0-1", 1: "0-1"})
    assert available_cores() == (0, 1)


def test_siblings_that_are_not_allowed_do_not_count(machine) -> None:
    machine({4, 5}, {4: "0,4", 5: "1,5"})
    assert available_cores() == (4, 5)


@pytest.mark.parametrize(("quota", "count"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 4)])
def test_a_container_quota_limits_the_cores(machine, quota: str, count: int) -> None:
    machine({0, 1, 2, 3}, quota=quota)
    assert len(available_cores()) == count


def test_the_fingerprint_follows_what_decides_a_measurement_and_nothing_else() -> None:
    here = describe_host()
    assert here["fingerprint"] == fingerprint(here) == fingerprint(here | {"system": "another kernel"})
    assert fingerprint(here | {"cpu_model": "another"}) != fingerprint(here)
    assert fingerprint(here | {"torch": "0.1"}) != fingerprint(here)


def test_a_library_decides_too_where_lanes_compute_with_it() -> None:
    """Profiles of torch's lanes alone keep the fingerprint that they had."""
    eager, both = describe_host(["cpu", "cuda:0"]), describe_host(["cpu", "openvino:CPU"])
    assert "openvino" not in eager
    assert eager["fingerprint"] == describe_host()["fingerprint"]
    assert both["openvino"] == host._version("openvino")
    assert both["fingerprint"] == fingerprint(both) != eager["fingerprint"]
    assert fingerprint(both | {"openvino": "another"}) != both["fingerprint"]


def test_compiled_lanes_have_the_cores_of_those_of_torch(monkeypatch) -> None:
    monkeypatch.setattr(host, "available_cores", lambda: (4, 7))
    eager, compiled = host.lanes_of("cpu"), host.lanes_of("openvino:CPU")
    assert [lane.name for lane in eager] == ["cpu0", "cpu1", "cpu0+1"]
    assert [lane.name for lane in compiled] == ["openvino:CPU@0", "openvino:CPU@1", "openvino:CPU"]
    assert [lane.cores for lane in eager] == [lane.cores for lane in compiled]
    assert host.lanes_of("openvino:NPU") == (LaneCores(name="openvino:NPU", cores=(7,), num_threads=1),)


def test_one_core_is_one_compiled_lane(monkeypatch) -> None:
    monkeypatch.setattr(host, "available_cores", lambda: (3,))
    assert [lane.name for lane in host.lanes_of("openvino:CPU")] == ["openvino:CPU@0"]
