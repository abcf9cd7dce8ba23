import json
import re

import pytest

from decoding.schedule import load_schedule


def test_the_fastest_schedule_is_written_and_shown_first(mirrorsd, profile_path, record_path, tmp_path):
    out = tmp_path / "best.yaml"
    words = ("search", "--profile", profile_path, "--record", record_path, "--out", out)
    found = json.loads(mirrorsd(*words, "--json").stdout)
    times = [one["predicted"]["tpot_s"] for one in found["candidates"]]
    assert times == sorted(times)
    assert found["winner"] == found["candidates"][0]
    assert load_schedule(out).model_dump(mode="json", exclude_defaults=True) == found["winner"]["schedule"]

    shown = mirrorsd(*words, "--top", 1).stdout
    assert found["winner"]["name"].split(",")[0] in shown
    assert found["verdict"].split("\n\n")[0] in shown.replace("\n", " ")


def test_a_space_narrows_the_search(mirrorsd, profile_path, record_path, tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("methods: [autoregressive]\nplacements: [pooled]\n")
    result = mirrorsd("search", "--profile", profile_path, "--record", record_path, "--space", space, "--json")
    assert [one["name"] for one in json.loads(result.stdout)["candidates"]] == ["plain, pooled"]


def test_no_two_schedules_share_a_name(mirrorsd, profile_path, record_path):
    found = json.loads(mirrorsd("search", "--profile", profile_path, "--record", record_path, "--json").stdout)
    names = [one["name"] for one in found["candidates"]]
    assert len(set(names)) == len(names)


def test_what_is_left_out_is_counted_by_reason(mirrorsd, profile_path, record_path, tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("windows: [1, 12, 13, 14]\nexit_top_k: [4]\ndraft_top_k: [2]\nuneven_roots: []\n")
    words = ("search", "--profile", profile_path, "--record", record_path, "--space", space)
    left_out = json.loads(mirrorsd(*words, "--json").stdout)["left_out"]
    shown = re.findall(r"^(\d+) left out: ", mirrorsd(*words).stdout, re.MULTILINE)
    assert list(map(int, shown)) == sorted(left_out.values(), reverse=True)[:5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods: [guessing]", r"space.yaml:1:11: methods.0: .* found 'guessing'"),
        ("windows: [0]", r"space.yaml:1:11: windows.0: .* found 0"),
        ("windows: [", r"space.yaml: not valid YAML"),
    ],
)
def test_a_malformed_space_is_named_with_line_and_value(mirrorsd, profile_path, record_path, tmp_path, text, message):
    space = tmp_path / "space.yaml"
    space.write_text(text)
    result = mirrorsd("search", "--profile", profile_path, "--record", record_path, "--space", space)
    assert result.exit_code == 2
    assert re.search(message, result.stderr)


def test_a_missing_profile_is_named(mirrorsd, record_path, tmp_path):
    result = mirrorsd("search", "--profile", tmp_path / "nowhere.yaml", "--record", record_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path / 'nowhere.yaml'}: cannot be read" in result.stderr
