"""`mirrorsd reproduce`: compares a published table of speed-ups with simulated ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, show, show_paragraphs, write_json
from mirrorsd.cli.options import option

if TYPE_CHECKING:
    from planner.reproduce.fitted_table import Baselines, Origin
    from planner.reproduce.reproduction import PredictedCell, Reproduction

EXAMPLE = "mirrorsd reproduce --published mirror-sd-qwen3-14b --target qwen3-14b --platform m2-ultra-x8"


def reproduce(
    published: Annotated[
        str,
        option(
            "A table of speed-ups: the name of a shipped one, or a CSV file with temperature, task and a column per "
            "method, including Vanilla SD; comments '# target: NAME' and '# platform: NAME' say what it is of."
        ),
    ],
    target: options.ShapeOption,
    platform: Annotated[
        str,
        option(
            "Machine with a GPU for the target and an NPU for the draft: m2-ultra-x8, m4-max, lunar-lake or a platform "
            "YAML.",
            autocompletion=options.platform_names,
        ),
    ] = "m2-ultra-x8",
    draft: Annotated[
        str,
        option(
            "Draft model, named like --target; mirror-track-0.6b is the Mirror-SD paper's draft of parallel tracks.",
            autocompletion=options.shape_names,
        ),
    ] = "mirror-track-0.6b",
    weights: options.WeightsOption = None,
    fit: Annotated[
        bool,
        option(
            "Fit the machine's unpublished constants to this table; otherwise use those fitted earlier to the "
            "platform, or data sheets.",
            "--fit/--no-fit",
        ),
    ] = True,
    out: Annotated[Path | None, options.page()] = None,
    json: options.JsonOption = None,
) -> None:
    """Fit unpublished machine constants to a published table of speed-ups, and show the error of each entry."""
    from decoding.yaml_file import write_atomically
    from hwprofiles.model_shape import model_shape
    from hwprofiles.platform import load_platform
    from hwprofiles.weights.formats import weights_in_name, weights_named
    from planner.reproduce.fitted_table import Baselines, Origin, known_constants
    from planner.reproduce.fitted_table import fit as fit_to
    from planner.reproduce.published_table import load_table
    from planner.reproduce.reproduction import predict_table
    from planner.reproduce.setup import Setup
    from planner.reproduce.table_page import render_page, sentences
    from sim.derived.roofline import StoredModel

    table, shape = load_table(published), model_shape(target)
    stored = weights_named(weights or weights_in_name(target, shape.published_in) or shape.published_in)
    setup = Setup.of(
        load_platform(platform),
        StoredModel(shape=shape, weights=stored),
        StoredModel(shape=model_shape(draft), weights=stored),
    )
    if fit:
        found, origin = fit_to(table, setup), Origin(f"fitted to {table.source}")
    else:
        values, origin = known_constants(platform, setup)
        found = predict_table(table, setup, values)
    baselines = Baselines.of(found)
    if out is not None:
        write_atomically(out, render_page(found, baselines, origin))
        say(f"Wrote {escaped(out)}")
    if write_json(_result(found, baselines, origin), json):
        show(_cells(found))
        show("")
        show(_constants(found, origin))
        show_paragraphs(*sentences(found, baselines, origin))


def _cells(found: "Reproduction") -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.wording import signed_percent

    title = "Speed-ups: predicted arms, published Mirror-SD, lead over EAGLE-3"
    numbers = ("SD", "+ str.", "Mirror", "+ str.", "publ.", "error", "lead", "publ.")
    rows = (
        (
            f"{cell.published.temperature:g}",
            cell.published.task,
            *map(_times, cell.arms.values()),
            _times(cell.published.mirror),
            "-" if cell.error is None else signed_percent(cell.error).removesuffix(" %"),
            _times(cell.lead),
            _times(cell.published_lead),
        )
        for cell in found.cells
    )
    return plain_table(title, ("T", "task"), numbers, rows)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _constants(found: "Reproduction", origin: "Origin") -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.wording import amount

    rows = (
        (
            one.name,
            amount(one.name, found.constants[one.name]),
            f"{amount(one.name, one.low)} to {amount(one.name, one.high)}",
            amount(one.name, one.datasheet),
            "fitted" if one.name in found.fitted else "given",
        )
        for one in found.setup.unknowns()
    )
    return plain_table(f"Constants, {origin.words}", ("constant", "value", "bounds", "data sheet", "status"), (), rows)


def _result(found: "Reproduction", baselines: "Baselines", origin: "Origin") -> dict[str, Any]:
    from mirrorsd.compare.numbers import picked
    from planner.reproduce.table_page import at_bounds, other_columns

    constants = {
        one.name: {"value": found.constants[one.name], **picked(one, "low high datasheet source")}
        for one in found.setup.unknowns()
    }
    return {
        "cells": [_cell(cell) for cell in found.cells],
        "mean_abs_error": found.mean_abs_error,
        "fitted": {name: constants[name] for name in found.fitted},
        "constants": {"origin": origin.words, "values": constants},
        "plain_tpot_s": found.arms.plain_s,
        "baselines": {"constant_times_vanilla": baselines.constant, "task_left_out": baselines.left_out},
        "at_bounds": [one.name for one in at_bounds(found)],
        "other_methods": [{**one._asdict(), "error": one.error} for one in other_columns(found)],
    }


def _cell(cell: "PredictedCell") -> dict[str, Any]:
    published = cell.published
    return {
        "temperature": published.temperature,
        "task": published.task,
        "method": "Mirror-SD",
        "published": published.mirror,
        "predicted": cell.mirror,
        "error": cell.error,
        "acceptance_rate": cell.rate,
        "vanilla_reached": cell.is_reached,
        "arms": dict(cell.arms),
        "lead_over_eagle3": {"published": cell.published_lead, "predicted": cell.lead},
    }
