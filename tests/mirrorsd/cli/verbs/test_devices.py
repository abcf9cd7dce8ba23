"""`mirrorsd devices` says what is there, and why the rest is not."""

from hwprofiles.host import lanes_of
from tests.mirrorsd.cli.calls import call, json_of


def test_devices_have_lanes_or_a_reason_in_json_and_in_words():
    found = {row["name"]: row for row in json_of("devices")["devices"]}
    for device in ("cpu", "openvino:CPU"):
        assert found[device]["lane_names"] == [lane.name for lane in lanes_of(device)]
    assert "int8" in found["openvino:CPU"]["forms"]
    assert "int8" not in found["cpu"]["forms"]
    text = call("devices").stdout
    for name, row in found.items():
        assert bool(row["missing"]) != bool(row["lane_names"])
        assert name in text
        assert f"missing: {row['missing']}" in text or not row["missing"]
        assert all(lane in text for lane in row["lane_names"])
