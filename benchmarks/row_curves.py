"""What rows cost on real devices: public curves of time over rows, condensed into the table that ships.

    python benchmarks/row_curves.py FOLDER      some minutes; FOLDER has points of curves and tables of kernels as CSV

Points (row_curves.csv, and row-curves-more.csv beside this script) are lines of device, engine, backend, model,
weights, context, rows, time_ms, how, source, date and note. Only what its source tells whole is taken: devices, models
and weights that are named, sources with an address, whole passes, from one row on, by kernels that are in use; and
rows of several sequences after at most 1,024 tokens only, since each reads a cache of its own. Tables of kernels are
summed up to curves (`_served_curves.py`). Writes hwprofiles/curves/row-curves.csv; and to source-errors.yaml beside it
and benchmarks/results/row-curves.json what every step away from a curve of the very device is off by, each curve or
device left out in turn (`_left_out_curves.py`).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from _common import RESULTS, arguments, write_result
from _left_out_curves import asked_of, left_out
from _served_curves import lines_of, served_curves

from hwprofiles.curves.names import backend_of, device_key, engine_of, family_of, weights_class
from hwprofiles.curves.row_curves import FILE, LONG_CONTEXT, PublicCurve, longest_context, read_curves
from hwprofiles.curves.row_prices import (
    ERRORS_FILE,
    KERNEL_STARTS_S,
    READ_AS_DENSE,
    STARTS_OF_MIXTURES,
    STEPS,
    kernel_start_s,
    reading,
    started_by,
    starts_of_mixtures,
)
from hwprofiles.weights.formats import stored_weights
from sim.derived.device_speed import KERNELS_PER_LAYER

OUT: Final = RESULTS / "row-curves.json"
MORE: Final = Path(__file__).with_name("row-curves-more.csv")
MOST_ROWS: Final = 32
_SHARED: Final = ("device", "engine", "backend", "model", "weights", "context", "how", "source", "date", "note")
_UNCLEAR: Final = re.compile(
    r"\bcut\b|not in the|not named|by figures|class|not visible|not printed|per thread|by pp|\b\d+x ", re.IGNORECASE
)
_UNFIT: Final = re.compile(
    r"BEFORE|OLD kernels|only to compare|server|not a pure|overstate|serial|second-hand|routing cliff"
)
_NAMELESS: Final = re.compile(r"unnamed|not named")
_MOST_CONTEXT: Final = 1024
_TRIED_US: Final = (0, 3, 5, 7, 10, 12, 18, 25)
_TRIED_OF_MIXTURES: Final = (0, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5)
PEAK_BYTES_PER_S: Final = {
    "mi60": 1024e9, "mi50": 1024e9, "rtx3090": 936e9, "rx6800": 512e9, "rtx4090": 1008e9, "p40": 346e9, "mi100": 1229e9,
    "rx9070xt": 640e9, "8060s": 256e9, "v100": 900e9, "jetsonorinnano": 68e9, "gb10": 273e9, "m2ultra": 800e9,
    "m2max": 400e9, "m5max": 614e9, "m1max": 400e9, "m1pro": 200e9, "rx7900xtx": 960e9,
    "rtxpro6000": 1792e9, "rtx5090": 1792e9, "h100": 3350e9, "rtx5080": 960e9, "a100": 2039e9, "rtx3060": 360e9,
    "jetsonagxorin": 205e9, "m1ultra": 800e9, "m3ultra": 819e9, "m4pro": 273e9, "m4max": 546e9, "mi300x": 5300e9,
    "rx7900xt": 800e9, "rtx3080": 760e9, "arcb580": 456e9,
    "m2pro": 200e9, "m3pro": 150e9, "mi210": 1638e9, "w7900": 864e9, "m4": 120e9, "rtx4070": 504e9,
    "arcprob70": 608e9, "p100": 732e9, "r9700": 640e9,
}  # fmt: skip
"""Bandwidths by the makers' data sheets, of devices that an efficiency is told of."""


class Read(NamedTuple):
    """What one row reads of a model: billions of weights, tied embeddings counted once and others not at all.

    Attributes:
        billions: of a dense model, or of a mixture's token.
        num_layers: of the model.
        total: of all experts too; 0 for a dense model.
        experts: of a layer.
        per_token: of them, without shared ones.
        linear_share: share of a mixture's layers with linear attention.
    """

    billions: float
    num_layers: int = 0
    total: float = 0.0
    experts: int = 0
    per_token: int = 0
    linear_share: float = 0.0

    @property
    def expert_share(self) -> float:
        """Share of a row's weights that routed experts have: their weights are all that `total` has more."""
        if not self.experts:
            return 0.0
        chosen = self.per_token / self.experts
        return (self.total - self.billions) / (1 - chosen) * chosen / self.billions


MODELS: Final = {
    "llama 1B": Read(1.24, 16), "Llama-3.2-3B": Read(3.21, 28), "llama 7B": Read(6.61, 32),
    "llama 8B": Read(7.50, 32), "Llama-3.1-8B": Read(7.50, 32), "qwen2 1.5B": Read(1.54, 28),
    "qwen2 32B": Read(31.98, 64), "Qwen2.5-Coder 7B": Read(7.07, 28), "Qwen2.5-0.5B-Instruct": Read(0.49, 24),
    "gemma 2B": Read(2.51, 18), "gemma-3-4b-it": Read(3.88, 34), "Qwen3.5-4B": Read(4.0, 32),
    "Qwen3.8-27B": Read(25.6, 64), "K2-V2 70B dense": Read(68.5, 80), "Qwen3-0.6B": Read(0.60, 28),
    "Qwen3-4B": Read(4.02, 36), "Qwen3-8B": Read(7.57, 36), "Mistral-Nemo 12B": Read(11.6, 40),
    "Midnight Miqu 70B": Read(68.7, 80), "Bonsai-27B": Read(25.6, 64),
    "Qwen3.5-9B": Read(7.94, 32), "TinyLlama 1.1B": Read(1.03, 22), "qwen2 7B": Read(7.07, 28),
    "Qwen3.5-2B": Read(1.88, 24), "gemma-4-12b-it": Read(11.9, 48),
    "granitemoe 3B (MoE)": Read(0.80, 32, 3.3, 40, 8), "deepseek2 16B (MoE, MLA)": Read(2.45, 27, 15.5, 64, 6),
    "GLM 4.7 Flash (MoE, MLA)": Read(3.0, 47, 29.6, 64, 4), "GLM 4.7 Flash (MoE)": Read(3.58, 47, 29.6, 64, 4),
    "Qwen3.6-35B-A3B (MoE)": Read(2.95, 40, 34.2, 256, 8, 0.75), "gemma4 26B.A4B (MoE)": Read(3.8, 30, 25.2, 128, 8),
    "Qwen3.5-35B-A3B (MoE)": Read(2.95, 40, 34.2, 256, 8, 0.75), "GLM-4.5-Air (MoE)": Read(12.8, 46, 106.2, 128, 8),
    "Qwen3-Next-80B-A3B (MoE)": Read(3.56, 48, 79.4, 512, 10, 0.75),
    "DeepSeek-V2-Lite (MoE)": Read(2.45, 27, 15.5, 64, 6),
    "gpt-oss 20B (MoE)": Read(3.6, 24, 20.9, 32, 4), "gpt-oss 120B (MoE)": Read(5.1, 36, 116.8, 128, 4),
    "Qwen3-30B-A3B (MoE)": Read(3.04, 48, 30.2, 128, 8), "Qwen3-Coder 30B-A3B (MoE)": Read(3.04, 48, 30.2, 128, 8),
    "qwen3moe 30B.A3B (MoE)": Read(3.04, 48, 30.2, 128, 8),
}  # fmt: skip
"""By the names in the file; makers' model cards."""
BITS: Final = {
    "F32": 32.0, "Q4_0": 4.55, "Q4_1": 5.0, "Q4_K": 4.85, "Q4_K_S": 4.6, "Q4_K_M": 4.85, "UD-Q4_K_XL": 5.2, "Q5_0": 5.5,
    "Q5_1": 6.0, "Q5_K": 5.6, "Q6_K": 6.56, "Q8_0": 8.5, "IQ1_S": 1.85, "IQ1_M": 2.0, "IQ3_XXS": 3.2, "IQ3_XS": 3.4,
    "Q2_K": 3.1, "Q2_K_M": 3.1, "F16": 16.0, "BF16": 16.0, "4-bit g64": 4.5, "4-bit": 4.5, "8-bit": 8.5,
    "MXFP4 throughout": 4.25, "Q5_K_M": 5.75, "Q3_K_M": 4.05, "UD-Q3_K_XL": 4.25, "Q1_0": 1.3, "IQ4_XS": 4.35,
    "AWQ 4-bit": 6.2, "FP16": 16.0,
}  # fmt: skip
"""Of a weight, head included."""
EXPERTS_ONLY: Final = {"MXFP4": ("mxfp4", {"llama.cpp": "mxfp4_moe"})}
"""Formats of experts, whose other weights have more bits: as published, and in the files of an engine."""


def main() -> None:
    """Condense the curves, and write what leaving them out tells."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    told = [curve for file in (folder / "row_curves.csv", MORE) for curve in condensed(file)]
    write_table([*told, *(_curve(*one) for one in served_curves(folder))])
    found = left_out(read_curves(), starts_s)
    write_errors(found)
    found |= {"starts_tried": starts_tried(read_curves()), "starts_of_mixtures_tried": mixtures_tried(read_curves())}
    write_result(OUT, {"measured": {}, "num_curves": len(read_curves()), **found})
    for question, steps in found.items():
        print(question, *steps.items(), sep="\n  ")


def condensed(path: Path) -> Iterator[PublicCurve]:
    """Yield every curve that can be used."""
    points = defaultdict[tuple[str, ...], dict[int, float]](dict)
    for row in lines_of(path):
        points[tuple(row[name] for name in _SHARED)][int(float(row["rows"]))] = float(row["time_ms"])
    for shared, times_ms in points.items():
        told = dict(zip(_SHARED, shared, strict=True))
        few = {rows: time for rows, time in sorted(times_ms.items()) if rows <= MOST_ROWS}
        if is_whole(told) and 1 in few:
            yield _curve(told, few)


def starts_s(curve: PublicCurve) -> float:
    """Return what the starts of kernels take of a pass."""
    factor = starts_of_mixtures(curve).at(curve.linear_share) if curve.is_mixture else 1.0
    return _kernels(curve) * factor * kernel_start_s(curve)


def starts_tried(curves: Sequence[PublicCurve]) -> dict[str, dict[str, float]]:
    """Return mean errors of passes over one row on devices left out, by what a kernel's start is taken to be, in us.

    Mixtures that read like dense models are left to `mixtures_tried`, which has more of them than there are of those.
    """
    return {
        name: {
            f"{start:g}": _error_of_starts(
                curves,
                lambda one, name=name: started_by(one) == name and not (one.is_mixture and one.engine in READ_AS_DENSE),
                lambda _, times=start * 1e-6 / usual_s: times,
            )
            for start in _TRIED_US
        }
        for name, usual_s in KERNEL_STARTS_S.items()
    }


def mixtures_tried(curves: Sequence[PublicCurve]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the same of mixtures of experts, by every factor that an engine has on starts in their layers.

    Only mixtures of a device are left out: how fast it reads is told by its dense models where the two read alike.
    """

    def is_one_of(one: PublicCurve, name: str) -> bool:
        return one.is_mixture and one.engine == name and starts_of_mixtures(one) == STARTS_OF_MIXTURES[name]

    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, usual in STARTS_OF_MIXTURES.items():
        told = [one for one in curves if is_one_of(one, name)]
        for field, own in zip(usual._fields, usual, strict=True):
            if told and own:
                errors = {
                    f"{tried:g}": _error_of_starts(
                        curves,
                        lambda one, name=name, field=field: (
                            is_one_of(one, name) and (field == "factor" or one.linear_share > 0)
                        ),
                        lambda one, usual=usual, field=field, tried=tried: (
                            usual._replace(**{field: tried}).at(one.linear_share) / usual.at(one.linear_share)
                        ),
                    )
                    for tried in _TRIED_OF_MIXTURES
                }
                found.setdefault(name, {})[field] = errors
    return found


def _error_of_starts(
    curves: Sequence[PublicCurve], is_asked: Callable[[PublicCurve], bool], times: Callable[[PublicCurve], float]
) -> float:
    """Return the mean error of passes over one row on devices left out, if starts took `times` as long."""
    told = [curve for curve in curves if curve.efficiency is not None]
    starts = [starts_s(one) * (times(one) if is_asked(one) else 1) for one in told]
    changed = [
        one.model_copy(update={"efficiency": _efficiency(one, one.one_row_s - start)})
        for one, start in zip(told, starts, strict=True)
    ]
    errors = []
    for one, start in zip(changed, starts, strict=True):
        others = [other for other in changed if other.device != one.device or (one.is_mixture and not other.is_mixture)]
        near = reading(asked_of(one), others)
        if is_asked(one) and near is not None:
            errors.append(abs(log((start + _at_peak_s(one) / near.efficiency) / one.one_row_s)))
    return round(fmean(errors), 3)


def _kernels(curve: PublicCurve) -> int:
    return MODELS[curve.model].num_layers * KERNELS_PER_LAYER


def _bits(weights: str, engine: str, read: Read) -> tuple[float, float]:
    """Return bits of a weight that a row reads, and the share of them that routed experts have."""
    if weights not in EXPERTS_ONLY:
        return BITS.get(weights, 0.0), read.expert_share
    published, own = EXPERTS_ONLY[weights]
    stored = stored_weights(own.get(engine, published))
    of_experts = read.expert_share * stored.bits
    bits = of_experts + (1 - read.expert_share) * (stored.dense_bits or stored.bits)
    return bits, of_experts / bits


def _at_peak_s(curve: PublicCurve) -> float:
    """Seconds of reading at the data sheet's bandwidth."""
    read = MODELS[curve.model]
    bits, _ = _bits(curve.stored, curve.engine, read)
    return read.billions * 1e9 * bits / 8 / PEAK_BYTES_PER_S[curve.device]


def _efficiency(curve: PublicCurve, reading_s: float) -> float:
    return min(1.0, _at_peak_s(curve) / max(1e-9, reading_s))


def _curve(told: Mapping[str, str], times_ms: Mapping[int, float]) -> PublicCurve:
    key = device_key(told["device"]) if "CPU" not in told["backend"] else told["device"].split(" (")[0]
    read, peak = MODELS.get(told["model"]), PEAK_BYTES_PER_S.get(key)
    is_short = longest_context(told["context"]) <= LONG_CONTEXT
    engine, weights = engine_of(told["engine"]) or told["engine"], weights_class(told["weights"])
    bits, expert_share = _bits(told["weights"], engine, read or Read(0.0))
    assert weights is not None, f"nobody knows the weights {told['weights']}"
    curve = PublicCurve(
        device=key,
        family=(family_of(key, engine, weights) if "CPU" not in told["backend"] else "cpu") or "",
        engine=engine,
        backend=backend_of(told["backend"], key),
        weights=weights,
        stored=told["weights"],
        model=told["model"],
        billions=read.billions if read else 0.0,
        expert_share=round(expert_share, 3),
        experts=read.experts if read else 0,
        per_token=read.per_token if read else 0,
        linear_share=read.linear_share if read else 0.0,
        context=told["context"],
        rows=tuple(times_ms),
        ratios=tuple(round(time / times_ms[1], 3) for time in times_ms.values()),
        one_row_s=round(times_ms[1] * 1e-3, 7),
        source=told["source"].split(" (")[0],
        date=told["date"].strip("~"),
    )
    if not (read and bits and peak and is_short):
        return curve
    efficiency = _efficiency(curve, curve.one_row_s - starts_s(curve))
    starts = max(0.0, 1 - _at_peak_s(curve) / efficiency / curve.one_row_s)
    return curve.model_copy(update={"efficiency": round(efficiency, 3), "starts": round(starts, 3)})


def write_table(curves: Iterable[PublicCurve]) -> None:
    """Write the table that ships."""
    lines = sorted(map(_line, curves), key=lambda row: tuple(row.values()))
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    read_curves.cache_clear()


def _line(curve: PublicCurve) -> dict[str, str]:
    told = curve.model_dump()
    lists = {name: " ".join(f"{value:g}" for value in told[name]) for name in ("rows", "ratios")}
    return {name: "" if value in (None, 0) else str(value) for name, value in (told | lists).items()}


def write_errors(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Write what steps cost as it ships."""
    rows, dense, mixed = (
        _rising([found[question][step] for step in STEPS])
        for question in ("share_of_log_ratio", "one_row", "one_row_of_mixtures")
    )
    lines = ["# What answers by public curves were off by in nine of ten cases; benchmarks/row_curves.py wrote it."]
    lines += [
        f"{step}: {{rows: {one:.3f}, reading: {two:.3f}, reading_of_mixtures: {three:.3f}}}"
        for step, one, two, three in zip(STEPS, rows, dense, mixed, strict=True)
    ]
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


def is_whole(told: Mapping[str, str]) -> bool:
    """Return whether a curve's source tells all that it is of, and it is one of whole passes."""
    named = " ".join(told[name] for name in ("device", "model", "weights"))
    return not (
        _UNCLEAR.search(named)
        or told["how"] == "kernel only"
        or weights_class(told["weights"]) is None
        or (told["how"] == "batched decode" and longest_context(told["context"]) > _MOST_CONTEXT)
        or _UNFIT.search(f"{told['note']} {told['context']}")
        or _NAMELESS.search(told["source"])
        or told["source"].startswith("stored file")
    )


if __name__ == "__main__":
    main()
