"""What further rows cost by engine and weights: public curves of time over rows, and the growth that each comes to.

    python benchmarks/row_growth.py FILE            a second; FILE has a curve's point a line, as CSV

Points are lines of device, engine, backend, model, weights, context, rows, time_ms, how, source, date and note. Only
what its source tells whole is taken: of a GPU, model and weights that are named, of whole passes of dense models, from
one row on, by kernels that are in use; and rows of several sequences after at most 1,024 tokens only, since each reads
a cache of its own. Growth is the share by which every further row, up to eight, slows a pass.
Writes benchmarks/results/row-growth.json; `hwprofiles/engines.yaml` gives medians and spans of it.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from _common import RESULTS, arguments, write_result

OUT: Final = RESULTS / "row-growth.json"
GROWING_ROWS: Final = 8
ENGINES: Final = {"llama.cpp": "llama.cpp", "MLX": "mlx", "vLLM": "vllm"}
"""Engines as curves name them, without forks of them."""
FORMATS: Final = {
    "bf16": re.compile(r"^(BF16|F16|FP16)$"),
    "int8": re.compile(r"^(Q8_0|INT8|FP8)"),
    "int4": re.compile(r"^(Q4_|Q5_|Q6_|IQ4|UD-Q4|4-bit|W4)"),
}
"""Weights by the bits that are read; codebook quants (IQ1 to IQ3) and those of two and three bits are none of them."""
_SHARED: Final = ("device", "engine", "backend", "model", "weights", "context", "how", "source", "date", "note")
_UNCLEAR: Final = re.compile(
    r"\bcut\b|not in the|not named|by figures|class|not visible|not printed|per thread|by pp|\d+x ", re.IGNORECASE
)
_UNFIT: Final = re.compile(r"BEFORE|OLD kernels|server|not a pure|overstate|serial|second-hand|routing cliff")
_MOST_CONTEXT: Final = 1024
_NUMBER: Final = re.compile(r"(\d+)(k?)")
_NAMELESS: Final = re.compile(r"unnamed|stored file|not named")

Curve = dict[str, Any]


def main() -> None:
    """Read the curves, and write what they come to."""
    parser = arguments(__doc__)
    parser.add_argument("file", type=Path)
    curves = list(read_curves(parser.parse_args().file))
    write_result(OUT, {"measured": {}, "growth": summary(curves), "curves": curves})
    for engine, formats in summary(curves).items():
        print(engine, formats)


def read_curves(path: Path) -> Iterator[Curve]:
    """Yield every curve that can be used, with its engine, weights and growth."""
    points = defaultdict[tuple[str, ...], dict[int, float]](dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points[tuple(row[name] for name in _SHARED)][int(float(row["rows"]))] = float(row["time_ms"])
    for shared, times_ms in points.items():
        told = dict(zip(_SHARED, shared, strict=True))
        engine, weights, found = ENGINES.get(told["engine"]), weights_of(told["weights"]), growth(times_ms)
        if engine is not None and weights is not None and found is not None and is_whole(told):
            kept = {name: told[name] for name in ("device", "backend", "model", "context", "how", "source")}
            times = {str(rows): time for rows, time in sorted(times_ms.items())}
            yield {
                "engine": engine,
                "weights": weights,
                "as": told["weights"],
                **kept,
                "growth": found,
                "times_ms": times,
            }


def weights_of(name: str) -> str | None:
    """Return the format whose bits weights have; None of any other."""
    return next((form for form, pattern in FORMATS.items() if pattern.search(name)), None)


def growth(times_ms: Mapping[int, float]) -> float | None:
    """Return the growth by rows, fitted through the pass of one row; None without that, or without further ones."""
    if 1 not in times_ms:
        return None
    more = {rows - 1: time / times_ms[1] - 1 for rows, time in times_ms.items() if 1 < rows <= GROWING_ROWS}
    return sum(rows * slower for rows, slower in more.items()) / sum(rows**2 for rows in more) if more else None


def is_whole(told: Mapping[str, str]) -> bool:
    """Return whether a curve's source tells all that it is of, and it is one of whole passes of a dense model."""
    named = " ".join(told[name] for name in ("device", "model", "weights"))
    return not (
        _UNCLEAR.search(named)
        or "(MoE" in told["model"]
        or told["backend"].startswith("CPU")
        or told["how"] == "kernel only"
        or (told["how"] == "batched decode" and longest_context(told["context"]) > _MOST_CONTEXT)
        or _UNFIT.search(f"{told['note']} {told['context']}")
        or _NAMELESS.search(told["source"])
    )


def longest_context(told: str) -> int:
    """Return the largest number in what is told of a context, `8k` being 8,000."""
    return max((int(digits) * (1000 if kilo else 1) for digits, kilo in _NUMBER.findall(told)), default=0)


def summary(curves: Sequence[Curve]) -> dict[str, dict[str, Any]]:
    """Return median, least and most growth by engine and weights, and of how many curves."""
    found = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for one in curves:
        found[one["engine"]][one["weights"]].append(one["growth"])
    return {
        engine: {
            weights: {"value": median(own), "low": min(own), "high": max(own), "num_curves": len(own)}
            for weights, own in sorted(formats.items())
        }
        for engine, formats in sorted(found.items())
    }


if __name__ == "__main__":
    main()
