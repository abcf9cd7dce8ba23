"""Data sheets of servers' cores are what the script finds in the profiles that they name."""

import pytest

from tests.benchmarks.scripts import RESULTS, load_script

sheets = load_script("core_sheets")
ICE_LAKE = "avx2 avx512_vnni avx512f"


@pytest.fixture(scope="module")
def sessions():
    return sheets.by_cpu([RESULTS / "held-out"])


def test_sessions_are_apart_by_what_their_cpus_can(sessions):
    assert len(sessions) >= 4
    assert all({one.host["instruction_sets"] for one in own} == {sets} for sets, own in sessions.items())


def test_the_ice_lakes_sheet_and_platform_are_its_sessions(sessions):
    found = sheets.core_numbers([one for one in sessions[ICE_LAKE] if one.host["cpu_model"].startswith("Intel")])
    shipped = sheets.numbers_that_ship(ICE_LAKE)
    assert len(shipped) == 10, "five of a core, two of the memory and three of the link"
    for name, told in shipped.items():
        value, low, high = (float(one.strip("()")) for one in told.replace(" to", "").split())
        values = sorted(found[name])
        assert value == pytest.approx(sheets.median(values), rel=0.03), name
        assert low == pytest.approx(values[0], rel=0.08), name
        assert high == pytest.approx(values[-1], rel=0.08), name


def test_the_zen_5s_sheet_is_near_its_sessions(sessions):
    """Some of its numbers have further sources."""
    sets = "avx2 avx512_bf16 avx512_vnni avx512f avx_vnni"
    found, shipped = sheets.core_numbers(sessions[sets]), sheets.numbers_that_ship(sets)
    for name in ("cache_efficiency", "bf16_flops", "memory.bytes_per_s"):
        assert float(shipped[name].split()[0]) == pytest.approx(sheets.median(found[name]), rel=0.03), name
