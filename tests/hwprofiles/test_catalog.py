from pathlib import Path

import pytest

from decoding.errors import ConfigError, ProfileError
from hwprofiles.platform import Platform, find_entry, kind_of, load_platform, shipped_entries
from hwprofiles.sheets import KINDS, device_sheet, link_sheet, shipped_file, shipped_names


def test_all_that_ships_is_listed_under_names_that_mean_one_thing() -> None:
    entries = list(shipped_entries())
    assert {(entry.kind, entry.name) for entry in entries} == {(k, name) for k in KINDS for name in shipped_names(k)}
    assert len({entry.name for entry in entries}) == len(entries)


def test_a_name_finds_what_ships_under_it() -> None:
    assert find_entry("h200") == ("platform", "h200", load_platform("h200"))
    assert find_entry("h200-sxm") == ("device", "h200-sxm", device_sheet("h200-sxm"))
    assert find_entry("nvlink-4") == ("link", "nvlink-4", link_sheet("nvlink-4"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_as_what_it_describes(tmp_path: Path, kind) -> None:
    for name in shipped_names(kind):
        path = tmp_path / "own.yaml"
        path.write_text(shipped_file(kind, name).read_text())
        assert find_entry(str(path)) == (kind, str(path), find_entry(name).content)


def test_fields_tell_the_kind() -> None:
    assert kind_of({"devices": {}, "links": []}) == "platform"
    assert kind_of({"name": "mine", "kind": "gpu"}) == "device"
    assert kind_of({"name": "mine", "latency_s": {}, "speed": 3}) == "link"


def test_what_is_neither_is_answered_with_all_names(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="called 'h300'; did you mean .*h200.*Nor is there such a file"):
        find_entry("h300")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        find_entry(str(tmp_path / "absent.yaml"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("devices: {}\nname: x\n")
    with pytest.raises(ConfigError, match=r"wrong\.yaml:1:.*devices"):
        find_entry(str(wrong))


def test_the_platforms_of_the_plan_ship() -> None:
    assert shipped_names("platform") == (
        *("cpu-2core", "h100x2", "h100x4+1", "h200", "lunar-lake", "m2-ultra-x8", "m4-max", "panther-lake"),
        *("rtx4090+cpu", "strix-halo", "x-elite"),
    )


@pytest.mark.parametrize("name", shipped_names("platform"))
def test_every_platform_says_where_its_driver_runs_and_every_number_where_it_is_from(name: str) -> None:
    platform = load_platform(name)
    assert isinstance(platform, Platform)
    assert platform.device(platform.host).kind == "cpu"


def test_a_name_that_is_too_long_for_a_file_is_neither() -> None:
    with pytest.raises(ConfigError, match="cannot be a path"):
        find_entry("x" * 300)
