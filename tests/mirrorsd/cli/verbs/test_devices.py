"""`mirrorsd devices` says what is there, and why the rest is not."""

import json

from typer.testing import CliRunner

from hwprofiles.host import lanes_of
from mirrorsd.cli.app import app


def test_devices_as_json_have_lanes_or_a_reason():
    result = CliRunner().invoke(app, ["devices", "--json"])
    assert result.exit_code == 0
    found = {row["name"]: row for row in json.loads(result.stdout)["devices"]}
    assert found["cpu"]["lane_names"] == [lane.name for lane in lanes_of("cpu")]
    assert found["openvino:CPU"]["lane_names"] == [lane.name for lane in lanes_of("openvino:CPU")]
    assert "int8" in found["openvino:CPU"]["forms"]
    assert "int8" not in found["cpu"]["forms"]
    assert all(bool(row["missing"]) != bool(row["lane_names"]) for row in found.values())


def test_devices_in_words_name_every_lane_and_every_reason():
    rows = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)["devices"]
    text = CliRunner().invoke(app, ["devices"]).stdout
    for row in rows:
        assert row["name"] in text
        assert f"missing: {row['missing']}" in text or not row["missing"]
        assert all(name in text for name in row["lane_names"])
