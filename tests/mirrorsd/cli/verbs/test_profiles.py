import json

import pytest

from hwprofiles.sheets import KINDS, device_sheet, shipped_file, shipped_names
from mirrorsd.cli.verbs.profiles import WIDTH
from planner.wording import amount
from tests.mirrorsd.cli.calls import call, error_of, json_of

ALL = [name for kind in KINDS for name in shipped_names(kind)]


def test_list_is_a_table_of_kind_name_and_what():
    result = call("profiles", "list")
    lines = result.stdout.splitlines()
    assert (result.exit_code, len(lines)) == (0, len(ALL))
    assert lines[0].split(maxsplit=2) == ["platform", "cpu-2core", "A cloud server with two cores of an AMD EPYC"]
    assert max(map(len, lines)) <= WIDTH
    rows = json_of("profiles", "list")["profiles"]
    assert {row["name"] for row in rows} == set(ALL)
    assert {"kind": "device", "name": "h200-sxm", "what": "NVIDIA H200 SXM"} in rows


@pytest.mark.parametrize("name", ALL)
def test_show_fits_a_terminal_and_tells_every_number_with_status_and_source(name):
    text = call("profiles", "show", name).stdout
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    flat = " ".join(text.split())
    for field, quantity in device_sheet(name).quantities.items() if name in shipped_names("device") else ():
        line = next(line for line in text.splitlines() if line.split()[:1] == [field])
        assert line.endswith(f" {quantity.status}")
        assert f" {amount(field, quantity.value)} " in line
        assert " ".join(quantity.source.split()) in flat
        assert quantity.by is None or f"by {quantity.by}:" in flat
        assert quantity.as_of is None or str(quantity.as_of) in flat


def test_show_of_a_platform_tells_its_parts_once():
    text = call("profiles", "show", "m2-ultra-x8").stdout
    assert "device gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7\n" in text
    assert text.count("27.2 TFLOP/s") == 1
    assert "  host                    cpu0\n" in text
    assert "link gpu0 - gpu1, gpu2 - gpu3, gpu4 - gpu5, gpu6 - gpu7\n  Thunderbolt 5\n" in text
    assert "the paper only says that a fabric joins the pairs" in " ".join(text.split())


def test_show_as_json_holds_all_numbers():
    result = json_of("profiles", "show", "lunar-lake")
    assert (result["kind"], result["name"]) == ("platform", "lunar-lake")
    assert result["data"]["devices"]["npu"]["int8_ops"] == {"value": 48e12, "status": "datasheet", "source": "Intel"}


def test_show_takes_a_file_and_names_what_there_is(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("name: my machine\ndevices:\n  x: {name: X, kind: npu, power_w: 3.0}\n")
    assert (
        "  power_w                 3 W                                     guessed\n"
        in call("profiles", "show", own).stdout
    )
    assert "no platform, device or link is called 'cray'" in error_of("profiles", "show", "cray")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("bf16_flops", 9.89e14, "989 TFLOP/s"),
        ("bf16_flops", 2.25e15, "2,250 TFLOP/s"),
        ("memory_bytes_per_s", 1.365e11, "136.5 GB/s"),
        ("bytes_per_s", 6.6e8, "660 MB/s"),
        ("memory_bytes", 3.2e10, "32 GB"),
        ("latency_s", 6e-5, "60 us"),
        ("dispatch_s", 1.4e-3, "1.4 ms"),
        ("write_off_s", 94_608_000.0, "1,095 days"),
        ("memory_efficiency", 0.896, "89.6%"),
        ("price_usd_per_hour", 2.95, "2.95 USD/h"),
        ("price_usd", 1599.0, "1,599 USD"),
    ],
)
def test_numbers_are_shown_in_the_units_that_people_use(field, value, text):
    assert amount(field, value) == text


def test_lint_of_all_that_ships_finds_nothing():
    result = call("profiles", "lint")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"0 findings in {len(ALL)} files\n"


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "folder" / "h100-sxm.yaml"
    path.parent.mkdir()
    path.write_text(shipped_file("device", "h100-sxm").read_text().replace("9.89e+14", "1.979e+15"))
    return path


def test_lint_names_file_line_and_value_and_its_exit_status_is_1(bad):
    result = call("profiles", "lint", bad)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{bad}:9: bf16_flops 1.979e+15: twice the published 9.89e+14: a sparse")
    assert result.stderr == ("1 finding in 1 file\n")


def test_lint_looks_into_folders(bad):
    good = bad.parent / "good.yml"
    good.write_text(shipped_file("link", "nvlink-4").read_text())
    result = call("profiles", "lint", bad.parent, "--json")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["num_files"]) == (1, 2)
    first = data["findings"][0]
    assert (first["file"], first["line"], first["place"], first["value"]) == (str(bad), 9, "bf16_flops", "1.979e+15")


def test_lint_leaves_profiles_and_schedules_in_a_folder_alone(bad):
    schedule, profile = bad.parent / "best.yaml", bad.parent / "profile.yaml"
    schedule.write_text("method: autoregressive\ntarget_lane: gpu\n")
    profile.write_text("format: mirrorsd-profile-4\nlanes: {}\nlinks: {}\nnotes: []\n")
    result = call("profiles", "lint", bad.parent)
    assert result.stdout.count("\n") == 1
    assert "Left out, since they describe no device, link or platform: " in result.stderr
    assert json.loads(call("profiles", "lint", bad.parent, "--json").stdout)["left_out"] == [
        str(schedule),
        str(profile),
    ]
    asked = call("profiles", "lint", schedule)
    assert (asked.exit_code, asked.stdout) == (1, f"{schedule}:1: describes no device, link or platform\n")


@pytest.mark.parametrize(("path", "complaint"), [("absent.yaml", "no such file or folder"), ("", "holds no YAML file")])
def test_lint_of_nothing_is_an_error(tmp_path, path, complaint):
    assert complaint in error_of("profiles", "lint", tmp_path / path)
