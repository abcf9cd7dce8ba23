import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform

LUNAR_LAKE = load_platform("lunar-lake")


def test_a_change_in_per_cent_scales_the_number_and_is_a_guess_whose_source_says_what_it_was() -> None:
    changed = with_overrides(LUNAR_LAKE, {"npu.memory_bytes_per_s": "+10%", "memory.bytes_per_s": "-50 %"})
    rate = changed.devices["npu"].memory_bytes_per_s
    assert rate.value == pytest.approx(1.1 * 136.5e9, rel=1e-12)
    assert rate.status == "guessed"
    assert rate.source.startswith("what if: +10% of 1.365e+11 (Intel")
    assert changed.pool_of("npu")[1].bytes_per_s.value == pytest.approx(136.5e9 / 2, rel=1e-12)


@pytest.mark.parametrize("change", ["+100%", "2x", "2.0 ×", "x2"])
def test_the_span_changes_with_the_number(change: str) -> None:
    changed = with_overrides(LUNAR_LAKE, {"gpu-npu.latency_s": change})
    old, new = LUNAR_LAKE.link("gpu", "npu").latency_s, changed.link("gpu", "npu").latency_s
    assert new.span == pytest.approx([2 * end for end in old.span])


@pytest.mark.parametrize("value", [2.0e-5, "2e-5"])
def test_a_number_replaces_another_or_stands_where_there_was_none(value) -> None:
    changed = with_overrides(LUNAR_LAKE, {"npu-gpu.latency_s": value, "gpu.memory_cap_bytes_per_s": "1e11"})
    assert changed.transfer_s("gpu", "npu", 8) == changed.transfer_s("npu", "gpu", 8) == 2e-5
    assert changed.devices["gpu"].memory_cap_bytes_per_s.value == 1e11
    assert "nothing is known" in changed.devices["gpu"].memory_cap_bytes_per_s.source


def test_none_takes_a_number_away_and_facts_take_what_yaml_reads() -> None:
    changed = with_overrides(
        LUNAR_LAKE, {"gpu.int8_ops": "none", "npu.static_shapes": "true", "npu.row_buckets": "[1, 8]"}
    )
    assert changed.devices["gpu"].int8_ops is None
    assert changed.devices["npu"].row_buckets == (1, 8)
    fields = "max_prompt_tokens", "row_buckets", "static_shapes"
    without = with_overrides(changed, {f"npu.{field}": "none" for field in fields})
    assert [getattr(without.devices["npu"], field) for field in fields] == [None, (), False]


def test_only_the_link_in_that_direction_changes_where_directions_differ() -> None:
    ways = [{"between": way, "one_way": True, "latency_s": 1.0} for way in (("a", "b"), ("b", "a"))]
    devices = {name: {"name": name, "kind": "gpu"} for name in "ab"}
    machine = Platform.model_validate({"name": "test", "devices": devices, "links": ways})
    changed = with_overrides(machine, {"b-a.latency_s": "-50%"})
    assert (changed.transfer_s("a", "b", 0), changed.transfer_s("b", "a", 0)) == (1.0, 0.5)


@given(st.floats(-99, 1e4).map(lambda change: round(change, 3)))
def test_a_change_leaves_all_else_as_it_was_and_the_platform_too(change: float) -> None:
    before = LUNAR_LAKE.model_dump()
    changed = with_overrides(LUNAR_LAKE, {"npu.int8_ops": f"{change:+.3f}%"})
    assert changed.devices["npu"].int8_ops.value == pytest.approx(48e12 * (1 + change / 100))
    after = changed.model_dump()
    after["devices"]["npu"]["int8_ops"] = before["devices"]["npu"]["int8_ops"]
    assert after == before == LUNAR_LAKE.model_dump()


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("npuu.int8_ops", 1.0, "PART of platform .*Lunar Lake.* is gpu, npu, .*memory, gpu-npu"),
        ("int8_ops", 1.0, "set PART.FIELD"),
        ("npu.speed", 1.0, "npu has no field 'speed' that can be set; it has .*memory_bytes_per_s"),
        ("memory.devices", "[gpu]", "memory has no field 'devices'"),
        (
            "npu.int8_ops",
            "fast",
            "a number such as 50 TOPS or 8e9, found 'fast'; a change such as \\+10% or 2x, or none",
        ),
        ("npu.idle_power_w", "+10%", "no number is given that \\+10% could change"),
        ("npu.int8_ops", "-100%", "devices.npu.int8_ops.value: Input should be greater than 0"),
        ("npu.row_buckets", "[8, 1]", r"row_buckets \[8, 1\] must be ascending"),
        ("npu.row_buckets", "[8, ", "not valid YAML"),
        ("npu.int8_ops", "1e40", "1e.40 is outside"),
        ("npu.memory_bytes_per_s", "80", "80 bytes a second are no bandwidth; write its unit, such as 80 GB/s"),
    ],
)
def test_a_wrong_override_is_answered_with_what_is_right(key: str, value, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        with_overrides(LUNAR_LAKE, {key: value})


@pytest.mark.parametrize(
    ("part", "count"),
    [("links:thunderbolt", 10), ("links:thunderbolt-5", 4), ("links:unified-memory", 10), ("gpu0-gpu1", 1)],
)
def test_all_links_of_a_sheet_or_of_a_family_of_sheets_change_at_once(part: str, count: int) -> None:
    platform = load_platform("m2-ultra-x8")
    changed = with_overrides(platform, {f"{part}.latency_s": "12 us"})
    latencies = [link.latency_s for link in changed.links if link.latency_s is not None]
    assert [one.value for one in latencies].count(12e-6) == count


def test_all_devices_of_a_sheet_and_all_parts_of_a_pattern_change_at_once() -> None:
    platform = load_platform("m2-ultra-x8")
    by_sheet = with_overrides(platform, {"devices:m2-ultra-gpu.memory_efficiency": "50 %"})
    pattern = with_overrides(platform, {"memory*.bytes_per_s": "1 TB/s"})
    assert (
        sum(
            device.memory_efficiency != platform.device(name).memory_efficiency
            for name, device in by_sheet.devices.items()
        )
        == 8
    )
    assert {pool.bytes_per_s.value for pool in pattern.memory_pools.values()} == {1e12}


def test_a_dispatch_is_of_what_such_a_device_starts_where_its_sheet_does_not_say() -> None:
    npu = with_overrides(load_platform("lunar-lake"), {"npu.dispatch_s": "1 ms"}).device("npu")
    assert (npu.dispatch_s and npu.dispatch_s.value, npu.dispatch_of) == (1e-3, "graph")
