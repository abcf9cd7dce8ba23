import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.errors import ConfigError, ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.lint import lint_file
from hwprofiles.machines.assumed_parts import assumed_of
from hwprofiles.overrides import with_devices, with_overrides
from hwprofiles.platform import Platform, find_entry, load_platform, of_this_make, shipped_entries
from hwprofiles.platform_parts import PlacedDevice, PlacedLink
from hwprofiles.quantity import UNSOURCED
from hwprofiles.sheets import KINDS, device_sheet, link_sheet, shipped_file, shipped_names
from sim.derived.derived_profile import speed_on


def link(left: str, right: str, latency_s: float, bytes_per_s: float | None = None, *, one_way=False) -> PlacedLink:
    fields = {"between": (left, right), "latency_s": latency_s, "bytes_per_s": bytes_per_s, "one_way": one_way}
    return PlacedLink.model_validate(fields)


def platform(*links: PlacedLink, **fields) -> Platform:
    devices = {name: PlacedDevice(name=name, kind="gpu") for name in ("a", "b", "c")}
    return Platform.model_validate({"name": "test", "devices": devices, "links": links} | fields)


def test_a_transfer_costs_latency_and_bytes_on_every_link_of_its_path() -> None:
    machine = platform(link("a", "b", 1.0, 10.0), link("b", "c", 2.0, 5.0))
    assert machine.path("a", "c") == ("a", "b", "c")
    assert machine.transfer_s("a", "c", 20.0) == (1 + 20 / 10) + (2 + 20 / 5)
    assert machine.transfer_s("c", "a", 20.0) == machine.transfer_s("a", "c", 20.0)
    assert machine.transfer_s("a", "a", 20.0) == 0


def test_the_fastest_way_depends_on_the_size_of_the_message() -> None:
    short_but_narrow = link("a", "c", 1.0, 1.0)
    machine = platform(short_but_narrow, link("a", "b", 1.0, 100.0), link("b", "c", 1.0, 100.0))
    assert machine.path("a", "c", 0) == ("a", "c")
    assert machine.path("a", "c", 50) == ("a", "b", "c")


def test_a_link_may_differ_by_direction_or_lead_one_way_only() -> None:
    machine = platform(link("a", "b", 1.0, one_way=True), link("b", "a", 2.0, one_way=True), link("b", "c", 4.0))
    assert (machine.transfer_s("a", "c", 0), machine.transfer_s("c", "a", 0)) == (5, 6)
    assert machine.link("b", "a").latency_s.value == 2
    with pytest.raises(ProfileError, match="no link joins a to c"):
        machine.link("a", "c")


def test_engines_of_one_chip_share_a_memory_and_a_device_in_no_pool_has_its_own() -> None:
    machine = load_platform("m2-ultra-x8")
    for chip in range(8):
        name, pool = machine.pool_of(f"npu{chip}")
        assert {f"gpu{chip}", f"npu{chip}"} <= set(pool.devices)
        assert machine.pool_of(f"gpu{chip}") == (name, pool)
        assert f"gpu{(chip + 1) % 8}" not in pool.devices
    name, pool = load_platform("h100x2").pool_of("gpu1")
    assert (name, pool.devices) == ("gpu1", ("gpu1",))
    assert (pool.bytes_per_s.value, pool.memory_bytes.value) == (3.35e12, 80e9)
    with pytest.raises(ProfileError, match="'a' is in no memory pool and gives no memory_bytes_per_s"):
        platform().pool_of("a")


def test_own_fields_win_over_the_sheets_one_by_one() -> None:
    placed = PlacedDevice.model_validate({"sheet": "h100-sxm", "power_w": 500.0, "price_usd_per_hour": None})
    sheet = device_sheet("h100-sxm")
    assert placed.power_w.model_dump(include={"value", "status", "source"}) == {
        "value": 500.0,
        "status": "guessed",
        "source": UNSOURCED,
    }
    assert (placed.bf16_flops, placed.price_usd_per_hour) == (sheet.bf16_flops, None)
    assert placed.name == sheet.name


def test_a_platform_that_is_written_out_is_read_again_as_it_was() -> None:
    machine = load_platform("m2-ultra-x8")
    assert Platform.model_validate(machine.model_dump()) == machine
    assert Platform.model_validate(machine.model_dump(mode="json")) == machine


def test_a_platform_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(shipped_file("platform", "h100x2").read_text().replace("Two NVIDIA", "My two"))
    assert load_platform(own).name.startswith("My two H100")
    assert load_platform(str(own)) == load_platform(own)
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        load_platform(str(tmp_path / "absent.yaml"))
    with pytest.raises(ProfileError, match="no platform is called 'cray'; there are .*A file.s path will do"):
        load_platform("cray")


def test_devices_without_a_way_between_them_and_unknown_ones_are_errors() -> None:
    machine = platform(link("a", "b", 1.0))
    with pytest.raises(ProfileError, match="no link leads from a to c"):
        machine.transfer_s("a", "c", 1)
    with pytest.raises(ProfileError, match="no device 'd'; it has a, b, c"):
        machine.path("a", "d")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"host": "cpu"}, "no device is called 'cpu'; there are a, b, c"),
        ({"groups": {"all": ("a", "z")}}, "no device is called 'z'"),
        ({"groups": {"all": ("a", "a")}}, "devices of the group 'all' repeat: a"),
        ({"groups": {"b": ("a", "c")}}, "devices, memory pools and groups repeat: b"),
        ({"memory_pools": {"m": {"devices": ("z",), "bytes_per_s": 1e9}}}, "no device is called 'z'"),
        (
            {"memory_pools": {name: {"devices": ("a",), "bytes_per_s": 1e9} for name in "mn"}},
            "devices of memory pools repeat: a",
        ),
        ({"links": (link("a", "b", 1.0), link("b", "a", 1.0))}, "links in one direction repeat"),
        ({"price_usd": 100.0}, "price_usd and write_off_s belong together"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        platform(**fields)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{a: {sheet: h101}}", "no device sheet is called 'h101'"),
        (
            "{a: {sheet: l40s}}\nlinks: [{between: [a, z], latency_s: 1.0}]",
            "links.0.between.1: no device is called 'z'; there are a",
        ),
        ("{a: {sheet: l40s}}\nlinks: [{between: [a, a], latency_s: 1.0}]", "two different devices"),
        ("{a: {sheet: l40s}, b: {sheet: l40s}}\nlinks: [{between: [a, b], sheet: ultrafusion}]", "has no latency"),
        ("{a: {sheet: l40s}, b: {sheet: l40s}}\nlinks: [{between: [a, b], sheet: rope}]", "no link sheet .* 'rope'"),
        ("{a: {sheet: l40s, power_w: -3.0}}", "power_w.value: Input should be greater than 0, found -3.0"),
        ("{a: {sheet: l40s, power_w: 1.0e+9}}", "power_w: .*1e.09 is outside 1e-06..1e.06"),
        ("{a b: {sheet: l40s}}", "should match pattern"),
    ],
)
def test_a_wrong_platform_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(f"name: wrong\ndevices: {text}\n")
    with pytest.raises(ConfigError, match=rf"machine\.yaml:\d+:\d+: .*{complaint}"):
        load_yaml(path, Platform)


PAGE = Path(__file__).parents[2] / "docs" / "platforms.md"


def code_of(language: str) -> str:
    code, *_ = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_example_of_the_page_is_a_sound_platform_and_its_code_runs(tmp_path: Path, capsys) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(code_of("yaml"))
    assert [str(finding) for finding in lint_file(path)] == []
    assert load_platform(path).path("card", "npu") == ("card", "cpu", "npu")
    exec(compile(code_of("python"), "platforms.md", "exec"), {})
    assert capsys.readouterr().out.startswith("what if: +50% of 0.064 (Qwen3-0.6B")


def test_a_device_reads_the_memory_it_shares_unless_the_platform_gives_it_a_bandwidth_of_its_own() -> None:
    lunar_lake = load_platform("lunar-lake")
    wider = with_overrides(lunar_lake, {"memory.bytes_per_s": 2e11})
    own = with_overrides(wider, {"npu.memory_bytes_per_s": "-50%"})
    assert [lunar_lake.reading_peak(name).value for name in ("gpu", "npu")] == [136.5e9, 136.5e9]
    assert [wider.reading_peak(name).value for name in ("gpu", "npu")] == [2e11, 2e11]
    assert [own.reading_peak(name).value for name in ("gpu", "npu")] == [2e11, 136.5e9 / 2]
    assert load_platform("h200").reading_peak("gpu") == device_sheet("h200-sxm").memory_bytes_per_s


OWN_CHIP = "{name: My chip, kind: npu, memory_pool: mine, memory_bytes_per_s: 100 GB/s, bf16_flops: 25 TFLOPS}"
OWN_PLATFORM = f"""
name: Mine
devices: {{npu: {OWN_CHIP}, cpu: {{name: Its CPU, kind: cpu, memory_pool: mine}}}}
memory_pools: {{memory: {{devices: [npu, cpu], bytes_per_s: 1.0e+11}}}}
links: [{{between: [npu, cpu], sheet: unified-memory}}]
"""


@pytest.mark.parametrize("text", [OWN_CHIP, OWN_PLATFORM])
def test_a_faster_memory_moves_a_device_without_a_shipped_sheet_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    machine = load_platform(path)
    changes = ({"memory.bytes_per_s": "2x"}, {"npu.memory_bytes_per_s": "2x"}, {"npu.memory_bytes_per_s": 1e11})
    assert [with_overrides(machine, one).reading_peak("npu").value for one in changes] == [2e11, 2e11, 1e11]
    both = with_overrides(machine, {"npu.memory_bytes_per_s": 1e11, "memory.bytes_per_s": "2x"})
    assert both.reading_peak("npu").value == 1e11, "it was said to stay"


def test_a_device_of_ones_own_reads_the_memory_that_it_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN_CHIP)
    added = with_devices(load_platform("lunar-lake"), [str(path)])
    assert added.reading_peak("mine") == added.reading_peak("gpu")


def test_all_that_ships_is_found_by_names_that_mean_one_thing_and_read_from_a_copy(tmp_path: Path) -> None:
    entries = list(shipped_entries())
    assert {(entry.kind, entry.name) for entry in entries} == {(k, name) for k in KINDS for name in shipped_names(k)}
    assert len({entry.name for entry in entries}) == len(entries)
    readers = {"platform": load_platform, "device": device_sheet, "link": link_sheet}
    path = tmp_path / "own.yaml"
    for kind, name, content in entries:
        assert find_entry(name) == (kind, name, readers[kind](name)) == (kind, name, content)
        path.write_text(shipped_file(kind, name).read_text())
        assert find_entry(str(path)) == (kind, str(path), content)


def test_what_is_neither_is_answered_with_all_names(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="called 'h300'; did you mean .*h200.*Nor is there such a file"):
        find_entry("h300")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        find_entry(str(tmp_path / "absent.yaml"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("devices: {}\nname: x\n")
    with pytest.raises(ConfigError, match=r"wrong\.yaml:1:.*devices"):
        find_entry(str(wrong))


@pytest.mark.parametrize("read", [find_entry, load_platform])
def test_a_calibrated_profile_is_no_data_sheet(tmp_path: Path, read) -> None:
    (tmp_path / "mine.yaml").write_text("format: mirrorsd-profile-4\nlanes: []\n")
    with pytest.raises(ProfileError, match=r"mine\.yaml: is a calibrated profile, no data sheet; plan with it: --prof"):
        read(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("sets", "make"),
    [
        ("avx2 avx512_bf16 avx512_vnni avx512f avx_vnni", "(Zen 5)"),
        ("avx2 avx512_bf16 avx512_vnni avx512f", "(Zen 4)"),
        ("avx2", "(Zen 3)"),
        ("avx2 avx_vnni", "two cores of an AMD EPYC"),
        ("amx_bf16 amx_int8 amx_tile avx2 avx512_bf16 avx512_vnni avx512f avx_vnni", "(Emerald Rapids)"),
        ("avx2 avx512_vnni avx512f", "(Ice Lake)"),
    ],
)
def test_a_platform_of_several_makes_is_that_of_this_host(sets, make, monkeypatch):
    monkeypatch.setattr("hwprofiles.platform.describe_host", lambda: {"instruction_sets": sets})
    assert of_this_make(load_platform("cpu-2core")).name.endswith(make)
    assert of_this_make(load_platform("h200")) == load_platform("h200")


def test_an_npu_in_another_chips_memory_reads_as_fast_as_where_it_was_measured() -> None:
    """It is no share of a memory that bounds it: XDNA2 reads 35 to 56 GB/s of 256, and of 90 and 120."""
    at_home = load_platform("strix-halo")
    away = with_devices(load_platform("radeon-780m"), ["strix-halo-npu@unified-memory"])
    rate = speed_on(at_home, "npu").bytes_per_s
    assert speed_on(away, "strix-halo-npu").bytes_per_s == rate
    assert away.reading_peak("gpu") == away.memory_pools["memory"].bytes_per_s
    assert [one for one in assumed_of(away) if f"strix-halo-npu reads {rate / 1e9:.3g} GB/s" in one]
    assert not list(assumed_of(at_home))
    own = with_overrides(away, {"strix-halo-npu.memory_efficiency": 0.5})
    whole = away.memory_pools["memory"].bytes_per_s.value
    assert speed_on(own, "strix-halo-npu").bytes_per_s == whole / 2, "what a user says is of this memory"
    slow = with_overrides(away, {"memory.bytes_per_s": "20 GB/s"})
    assert speed_on(slow, "strix-halo-npu").bytes_per_s == 20e9, "no faster than that"
    assert at_home.reading_peak("npu") == at_home.memory_pools["memory"].bytes_per_s


def test_a_chip_that_is_called_by_its_name_has_its_npu_too() -> None:
    assert {*load_platform("Ryzen AI 9 HX 370").devices} == {"gpu", "npu", "cpu"}
