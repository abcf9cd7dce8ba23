"""Rows are alike under every instruction set that this machine can be told to have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.instruction_set import ISA_VARIABLE, cap_instruction_set, chosen_by, has_vnni, without_our_limit

CPU_INFO = Path("/proc/cpuinfo")
ONEDNN = {  # OpenVINO compiles nothing below AVX2
    "avx2": "AVX2",
    "avx512f": "AVX512_CORE",
    "avx512_vnni": "AVX512_CORE_VNNI",
    "avx512_bf16": "AVX512_CORE_BF16",
    "amx_tile": "ALL",
}
ATEN = {"sse4_1": "default", "avx2": "avx2", "avx512f": "avx512"}
TILES = "ALL"
OURS = "MIRRORSD_LIMITS_TORCH"


FLAGS = CPU_INFO.read_text().split() if CPU_INFO.exists() else []


def possible(names):
    return [name for flag, name in names.items() if flag in FLAGS]


@pytest.fixture(scope="module")
def rows_alike(tmp_path_factory):
    other = {name: value for name, value in os.environ.items() if name not in (ISA_VARIABLE, OURS)}

    def rows_alike(*backends, program="rows_alike", **environment):
        done = subprocess.run(
            [sys.executable, "-m", f"tests.runtime.{program}", *backends],
            env=other | {"MIRRORSD_CACHE": str(tmp_path_factory.mktemp("cache"))} | environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return rows_alike


@pytest.mark.parametrize("instructions", possible(ONEDNN))
def test_rows_are_alike_by_either_back_end_in_every_form(rows_alike, instructions):
    found = rows_alike("torch", "graphs float", "graphs bfloat", "graphs int", **{ISA_VARIABLE: instructions})
    assert len(found) == 6
    for name, one in found.items():
        if instructions == TILES and name.startswith("torch"):  # a user who wants tiles there is told the truth
            assert one["is_so"] or not one["says"], name
        else:
            assert one == {"says": True, "is_so": True}, name


def test_rows_are_alike_without_a_users_limit(rows_alike):
    """On a CPU with tiles OpenVINO uses them then, and torch does not."""
    found = rows_alike()
    assert len(found) == 7
    assert all(one == {"says": True, "is_so": True} for one in found.values()), found


@pytest.mark.skipif("amx_tile" not in FLAGS, reason="this CPU has no tiles")
def test_no_number_of_a_product_with_tiles_depends_on_the_number_of_rows(rows_alike):
    """At real sizes, too: of inputs that did not fill whole tiles one of 10,000 numbers did, in calls of one row."""
    found = rows_alike(program="products_alike")
    assert all("amx" in used for used in found["used"])
    assert {what: count for what, count in found["differing"].items() if count} == {}


@pytest.mark.parametrize("instructions", possible(ATEN)[:-1])
def test_rows_are_alike_whatever_torch_itself_uses(rows_alike, instructions):
    """Told nothing, as by the test above, it uses the last of them."""
    found = rows_alike("torch", ATEN_CPU_CAPABILITY=instructions)
    assert len(found) == 2
    assert all(one == {"says": True, "is_so": True} for one in found.values()), found


@pytest.mark.parametrize(
    ("flags", "given", "expected"),
    [
        ("avx2 amx_tile amx_bf16", {}, {ISA_VARIABLE: "AVX512_CORE_BF16", OURS: "1"}),
        ("avx2 amx_tile amx_bf16", {ISA_VARIABLE: "ALL"}, {ISA_VARIABLE: "ALL"}),
        ("avx2 avx512f avx512_bf16", {}, {}),
    ],
)
def test_tiles_are_left_out_where_there_are_any_and_nobody_chose(tmp_path, flags, given, expected):
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {flags}\n")
    cap_instruction_set(given, info)
    assert given == expected


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({ISA_VARIABLE: "AVX512_CORE_BF16", OURS: "1"}, None),
        ({ISA_VARIABLE: "AVX512_CORE_BF16"}, "AVX512_CORE_BF16"),
        ({}, None),
    ],
)
def test_the_limit_for_torch_is_hidden_from_openvino_and_a_users_is_not(environment, seen):
    before = dict(environment)
    with without_our_limit(environment):
        assert environment.get(ISA_VARIABLE) == seen
    assert environment == before


def test_a_system_that_tells_nothing_of_its_cpu_is_left_alone(tmp_path):
    environment = {}
    cap_instruction_set(environment, tmp_path / "none")
    assert environment == {}


@pytest.mark.parametrize(
    ("flags", "allowed", "expected"),
    [
        ("avx2 avx512f avx512_vnni", "", True),
        ("avx2 avx512f avx512_vnni", "AVX512_CORE_BF16", True),
        ("avx2 avx512f avx512_vnni", "AVX512_CORE", False),
        ("avx2 avx512f avx512_vnni", "AVX2_VNNI", False),
        ("avx2 avx512f", "", False),
        ("avx2 avx_vnni", "AVX2_VNNI", True),
        ("avx2 avx_vnni", "AVX2", False),
        ("avx2", "", False),
        ("asimd", "", True),
    ],
)
def test_integer_products_are_used_where_the_cpu_has_them_and_nobody_left_them_out(tmp_path, flags, allowed, expected):
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {flags}\n")
    assert has_vnni({ISA_VARIABLE: allowed}, info) is expected


TWO_CORES = """processor : 0
model name : A CPU
cpu MHz : 2445.4
cache size : 512 KB
flags : avx2
bogomips : 4890.84

processor : 1
model name : A CPU
cache size : 2048 KB
"""


@pytest.fixture(autouse=True)
def first_core(monkeypatch):
    """This process may run on the first core alone."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)


def test_kernels_are_chosen_by_what_the_own_cores_are_and_what_onednn_was_told(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(TWO_CORES)
    found = chosen_by({"HOME": "here", ISA_VARIABLE: "AVX2"}, info)
    assert found == ["model name : A CPU", "cache size : 512 KB", "flags : avx2", f"{ISA_VARIABLE}=AVX2"]
    assert chosen_by({ISA_VARIABLE: "AVX2", OURS: "1"}, info) == chosen_by({}, info)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert chosen_by({}, info) == ["model name : A CPU", "cache size : 512 KB", "flags : avx2", "cache size : 2048 KB"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    assert chosen_by({}, info) == chosen_by({}, info, cores=(1,)) == ["model name : A CPU", "cache size : 2048 KB"]


def test_another_speed_is_the_same_cpu_and_another_cache_is_another(tmp_path):
    info = tmp_path / "cpuinfo"
    found = []
    for text in (TWO_CORES, TWO_CORES.replace("2445.4", "1800.0"), TWO_CORES.replace("512", "1024")):
        info.write_text(text)
        found.append(chosen_by({}, info))
    assert found[0] == found[1] != found[2]


def test_of_a_system_that_tells_nothing_nothing_is_known(tmp_path):
    (tmp_path / "empty").write_text("\n")
    for name in ("none", "empty"):
        assert chosen_by({ISA_VARIABLE: "AVX2"}, tmp_path / name) == []
