"""What passes take on real devices: public curves of time over rows, condensed into the table that ships.

    python benchmarks/row_curves.py FOLDER          seconds; FOLDER has points of curves and tables of kernels as CSV

Points (row_curves.csv, and row-curves-more.csv beside this script) are lines of device, engine, backend, model,
weights, context, rows, time_ms, how, source, date and note. Only what its source tells whole is taken: devices, models
and weights that are named, sources with an address, whole passes, from one row on. Further rows are taken by kernels
that are in use only, and of several sequences after at most 1,024 tokens, since each reads a cache of its own; of other
curves the pass of one row is kept. Tables of kernels are summed up to curves (`_served_curves.py`). Writes
hwprofiles/curves/row-curves.csv; and to source-errors.yaml beside it and benchmarks/results/row-curves.json what
answers are off by, each curve or device left out in turn (`_left_out_curves.py`).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from _common import RESULTS, arguments, write_result
from _left_out_curves import left_out
from _served_curves import served_curves

from decoding.errors import ConfigError
from hwprofiles.curves.asked import STEPS
from hwprofiles.curves.names import backend_of, device_key, engine_of, family_of, weights_class
from hwprofiles.curves.row_curves import FILE, LONG_CONTEXT, PublicCurve, longest_context, read_curves
from hwprofiles.curves.row_prices import ERRORS_FILE
from hwprofiles.machines.device_names import find_device
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models
from hwprofiles.models.model_names import named_shape
from hwprofiles.sheets import DeviceSheet, device_sheet
from hwprofiles.weights.formats import weights_named

OUT: Final = RESULTS / "row-curves.json"
MORE: Final = Path(__file__).with_name("row-curves-more.csv")
MOST_ROWS: Final = 32
_SHARED: Final = ("device", "engine", "backend", "model", "weights", "context", "how", "source", "date", "note")
_UNCLEAR: Final = re.compile(
    r"\bcut\b|not in the|not named|by figures|class|not visible|not printed|per thread|by pp|\b\d+x ", re.IGNORECASE
)
_UNFIT: Final = re.compile(r"second-hand|prefill|not a pure|overstate")
_ONE_ROW: Final = re.compile(r"BEFORE|OLD kernels|server|serial|routing cliff|one row only")
_DATE: Final = re.compile(r"\d{4}(-\d\d)*")
USUAL_CONTEXT: Final = 512.0
_NAMELESS: Final = re.compile(r"unnamed|not named")
_MOST_CONTEXT: Final = 1024
ALIASES: Final = {
    "llama 1B": "llama-3.2-1b", "llama 3B": "llama-3.2-3b", "llama 7B": "llama-2-7b", "open-llama 7B": "llama-2-7b",
    "llama 8B": "llama-3.1-8b", "llama 13B": "llama-2-13b", "llama 70B": "llama-3.1-70b", "Llama-2 70B": "llama-2-70b",
    "Midnight Miqu 70B": "llama-2-70b", "K2-V2 70B dense": "llama-2-70b", "qwen2 1.5B": "qwen2.5-1.5b",
    "qwen2 7B": "qwen2.5-7b", "qwen2 32B": "qwen2.5-32b", "qwen3moe 30B.A3B (MoE)": "qwen3-30b-a3b",
    "Bonsai-27B": "qwen3.6-27b", "granitemoe 3B (MoE)": "granite-3.1-3b-a800m",
}  # fmt: skip
"""Shapes of models by the names in the files: those of llama.cpp, and of models with another's shape."""
MLX_BITS: Final = re.compile(r"^(\d)-bit")
STORED: Final = {"MXFP4": "mxfp4_moe", "W4 (int8 activations on MLP), fp8 KV": "gptq-int4"}
"""Formats by the names in the files, where these mean another one than elsewhere."""


def main() -> None:
    """Condense the curves, and write what leaving them out tells."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    told = [curve for file in (folder / "row_curves.csv", MORE) for curve in condensed(file)]
    write_table([*told, *(_curve(*one) for one in served_curves(folder))])
    found = left_out(read_curves())
    write_errors(found)
    write_result(OUT, {"measured": {}, "num_curves": len(read_curves()), **found})
    for question, answers in found.items():
        print(question, *answers.items(), sep="\n  ")


def condensed(path: Path) -> Iterator[PublicCurve]:
    """Yield every curve that can be used."""
    points = defaultdict[tuple[str, ...], dict[int, float]](dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points[tuple(row[name] for name in _SHARED)][int(float(row["rows"]))] = float(row["time_ms"])
    for shared, times_ms in points.items():
        told = dict(zip(_SHARED, shared, strict=True))
        few = {rows: time for rows, time in sorted(times_ms.items()) if rows <= (MOST_ROWS if tells_rows(told) else 1)}
        if is_named(told) and 1 in few and (len(few) > 1 or floor_of(told)):
            yield _curve(told, few)


def _curve(told: Mapping[str, str], times_ms: Mapping[int, float]) -> PublicCurve:
    is_cpu = "CPU" in told["backend"]
    key = device_key(_sheet_name(told) or told["device"].split(" (")[0])
    shape, floor, weights = shape_of(told["model"]), floor_of(told), weights_class(told["weights"])
    assert weights is not None, f"nobody knows the weights {told['weights']}"
    layers = 0.0 if shape is None else shape.num_layers * shape.layer_weight_bytes("bf16")
    read = 0.0 if shape is None else layers + shape.head_bytes("bf16")
    experts = (
        2.0 * shape.num_layers * shape.expert_share * shape.experts_per_token * shape.expert_parameters if shape else 0
    )
    return PublicCurve(
        device=key,
        family="cpu" if is_cpu else family_of(key) or "",
        engine=engine_of(told["engine"]) or told["engine"].lower(),
        backend=backend_of(told["backend"], key),
        weights=weights,
        stored=told["weights"],
        model=told["model"],
        billions=round(read / 2e9, 2),
        expert_share=round(experts / read, 3) if experts else 0.0,
        experts=shape.num_experts if shape else 0,
        per_token=shape.experts_per_token if shape else 0,
        context=told["context"],
        rows=tuple(times_ms),
        ratios=tuple(round(time / times_ms[1], 3) for time in times_ms.values()),
        one_row_s=round(times_ms[1] * 1e-3, 7),
        floor_s=floor and round(floor, 7),
        layers=shape.num_layers if shape and floor else 0,
        source=told["source"].split(" (")[0].split(";")[0],
        date=date[0] if (date := _DATE.search(told["date"])) else "2026",
    )


def shape_of(model: str) -> ModelShape | None:
    """Return the shape of a model by its name in the files; None where none is known."""
    known = named_shape(ALIASES.get(model, model), shipped_models())
    return None if known is None else model_shape(known)


def floor_of(told: Mapping[str, str]) -> float | None:
    """Return the seconds of reading what one row does at full bandwidth; None where sizes or device are not known."""
    shape, sheet = shape_of(told["model"]), _sheet_of(told)
    stored = MLX_BITS.sub(r"mlx-\1bit ", told["weights"]).split()[0] if "MLX" in told["engine"].upper() else ""
    try:
        weights = weights_named(STORED.get(told["weights"], stored or told["weights"]))
    except ConfigError:
        return None
    is_short = longest_context(told["context"]) <= LONG_CONTEXT
    if shape is None or sheet is None or sheet.memory_bytes_per_s is None or not is_short:
        return None
    layer = shape.layer_weight_bytes(weights) + float(shape.layer_kv_bytes(1, USUAL_CONTEXT))
    return (shape.num_layers * layer + shape.head_bytes(weights)) / sheet.memory_bytes_per_s.value


def _sheet_of(told: Mapping[str, str]) -> DeviceSheet | None:
    named = find_device(told["device"])
    sheet = device_sheet(named.sheet) if named and named.num_devices == 1 else None
    return sheet if sheet and (sheet.kind == "cpu") == ("CPU" in told["backend"]) else None


def _sheet_name(told: Mapping[str, str]) -> str | None:
    sheet = _sheet_of(told)
    return None if sheet is None else f"{sheet.name} CPU" if sheet.kind == "cpu" else sheet.name


def write_table(curves: Iterable[PublicCurve]) -> None:
    """Write the table that ships."""
    lines = sorted((one.as_row() for one in curves), key=lambda row: tuple(row.values()))
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    read_curves.cache_clear()


def write_errors(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Write what steps cost as it ships."""
    rows = _rising([found["share_of_log_ratio"][step] for step in STEPS])
    lines = ["# What answers by public curves were off by in nine of ten cases; benchmarks/row_curves.py wrote it."]
    lines += [f"{step}: {one:.3f}" for step, one in zip(STEPS, rows, strict=True)]
    ERRORS_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rising(steps: Sequence[Mapping[str, float]]) -> list[float]:
    """Return errors of steps, pooled where a farther one seems better than a nearer one, which is chance."""
    pools: list[tuple[float, float, int]] = []
    for step in steps:
        pools.append((step["of_90"], step["num"], 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, of_one, steps_of_one), (other, of_other, steps_of_other) = pools[-2:]
            pooled = (one * of_one + other * of_other) / (of_one + of_other)
            pools[-2:] = [(pooled, of_one + of_other, steps_of_one + steps_of_other)]
    return [error for error, _, num_steps in pools for _ in range(num_steps)]


def is_named(told: Mapping[str, str]) -> bool:
    """Return whether a curve's source tells all that it is of, and it is one of whole passes of one request."""
    named = " ".join(told[name] for name in ("device", "model", "weights"))
    return not (
        _UNCLEAR.search(named)
        or told["how"] == "kernel only"
        or weights_class(told["weights"]) is None
        or ("MoE" in told["model"] and shape_of(told["model"]) is None)
        or _UNFIT.search(told["note"])
        or _NAMELESS.search(told["source"])
        or told["source"].startswith("stored file")
    )


def tells_rows(told: Mapping[str, str]) -> bool:
    """Return whether further rows are the price of a row: by kernels in use, and of one cache or short ones."""
    is_deep = told["how"] == "batched decode" and longest_context(told["context"]) > _MOST_CONTEXT
    return not (is_deep or _ONE_ROW.search(f"{told['note']} {told['context']}"))


if __name__ == "__main__":
    main()
