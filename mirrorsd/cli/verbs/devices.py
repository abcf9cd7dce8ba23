"""`mirrorsd devices`: lists the devices that can have lanes, what each one can do, and why one is missing."""

from dataclasses import asdict

from mirrorsd.cli.console import escaped, show, write_json
from mirrorsd.cli.options import JsonOption

EXAMPLE = "mirrorsd devices --json"


def devices(json: JsonOption = None) -> None:
    """List the devices that can have lanes, what each one can do, and why one is missing."""
    from hwprofiles.host import lanes_of
    from runtime.backends.devices import devices as all_devices

    rows = [
        asdict(device) | {"lane_names": [lane.name for lane in lanes_of(device.name)] if not device.missing else []}
        for device in all_devices()
    ]
    if not write_json({"devices": rows}, json):
        return
    for row in rows:
        if row["missing"]:
            show(f"[bold]{escaped(row['name'])}[/]  missing: {escaped(row['missing'])}")
            continue
        show(f"[bold]{escaped(row['name'])}[/]  {escaped(row['description'])}")
        show(f"  weights: {', '.join(row['forms'])}")
        show(f"  lanes: {escaped(', '.join(row['lane_names']))}; for {escaped(row['lanes'])}")
