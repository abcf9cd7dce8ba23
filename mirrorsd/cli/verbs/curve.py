"""`mirrorsd curve`: predicts how long a pass over several rows takes on a device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from decoding.errors import ConfigError
from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, show, show_paragraphs, write_json
from mirrorsd.cli.option_values import cached_tokens, counts, listed
from mirrorsd.cli.options import option, output

if TYPE_CHECKING:
    from planner.row_curve import RowCurve

EXAMPLE = "mirrorsd curve --target llama-3.1-8b --device rtx4090"
MOST_ROWS = 1024


def curve(
    target: options.ShapeOption,
    device: Annotated[
        str,
        option(
            "A shipped device (`mirrorsd profiles list`), such as rtx4090 or 'Apple M4 Max', or a device's YAML.",
            autocompletion=options.device_names,
        ),
    ],
    weights: options.WeightsOption = None,
    engine: options.EngineOption = None,
    rows: Annotated[str, option("Rows of a pass: tokens computed at once.", metavar="COUNTS")] = "1,2,3,4,5,6,8,12,16",
    context: Annotated[int, option("Cached tokens before them, such as 8k.", parser=cached_tokens, metavar="N")] = 512,
    out: Annotated[Path | None, output("Write a picture (SVG) here.", kind="SVG")] = None,
    json: options.JsonOption = None,
) -> None:
    """Predict the time of a pass over several tokens, compared with one token; nothing is run or downloaded."""
    from decoding.yaml_file import load_yaml, write_atomically
    from hwprofiles.engines import published_for, require_reading, run_by, stands_for
    from hwprofiles.machines.device_names import device_named, find_device, other_memory
    from hwprofiles.model_shape import model_shape
    from hwprofiles.sheets import DeviceSheet
    from hwprofiles.weights.formats import weights_in_name, weights_named
    from planner.row_curve import curve_svg, row_curve
    from sim.derived.roofline import StoredModel

    sizes = counts("--rows", rows, MOST_ROWS)
    shape = model_shape(target)
    if len(listed(device)) > 1 and all(map(find_device, listed(device))):
        raise ConfigError(f"--device {device}: one device at a time")
    of_memory = None
    if device.endswith((".yaml", ".yml")):
        device, sheet = Path(device).stem, load_yaml(device, DeviceSheet)
    else:
        named = device_named(device)
        if named.num_devices > 1:
            raise ConfigError(f"--device {device}: a curve is of one {named.sheet}; for several use `mirrorsd plan`")
        device, sheet = named.sheet, named.own_sheet
        of_memory = other_memory(sheet, device)
    if engine is not None:
        sheet = run_by(sheet, engine)
        if sheet.kind != "gpu":
            raise ConfigError(f"--engine {engine}: engines are for GPUs, but {device} is of kind {sheet.kind}")
    stored = weights_named(weights or weights_in_name(target, shape.published_in) or published_for(shape, [sheet]))
    require_reading([sheet], stored)
    found = row_curve(StoredModel(shape=shape, weights=stored), device, sheet, sizes, context)
    if out is not None:
        write_atomically(out, curve_svg(found))
        say(f"Wrote {escaped(out)}")
    in_sheet = f"Data sheet: only weights in {' or '.join(sheet.weight_formats)}; predicted as if it ran {stored}."
    warnings = list(filter(None, [of_memory, stands_for(engine or ""), None if sheet.runs(stored) else in_sheet]))
    if write_json(_result(found) | {"warnings": warnings}, json):
        show(_table(found))
        show_paragraphs(f"Numbers {found.source}.", *filter(None, [found.beyond]), *warnings)


def _table(found: "RowCurve") -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.wording import between, factor, in_ms

    engine = "" if found.engine is None else f" by {found.engine}"
    title = f"{found.model} on {found.device}{engine}, {found.context} cached tokens: predicted ms per pass"
    rows = (
        (
            str(one.rows),
            in_ms(one.time_s),
            between(one.low, one.high),
            factor(one.ratio),
            f"{one.ratio_low:.2f} to {one.ratio_high:.2f}",
        )
        for one in found.rows
    )
    return plain_table(title, (), ("rows", "ms", "interval", "times one row", "interval"), rows)


def _result(found: "RowCurve") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "target": found.model.shape.name,
        "device": found.device,
        "engine": found.engine,
        "weights": found.model.weights,
        "context": found.context,
        "source": found.source,
        "beyond": found.beyond,
        "rows": [asdict(one) for one in found.rows],
        "assumptions": [asdict(one) for one in found.speed.assumptions],
    }
