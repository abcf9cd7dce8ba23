"""Kernel laws: what a product of some rows with a matrix takes on a device, and what its KV cache adds by context.

    python benchmarks/kernel_laws.py FOLDER         a second; FOLDER has the tables as CSV

One law of three numbers for each device, whatever the model and the tensor parallelism::

    seconds = start + bytes / (bandwidth * memory efficiency) + unhidden share * FLOPs / peak

Each number is fitted by least squares of relative errors to all models together; its span, and the errors, are those of
fits that leave one model out and are asked for that one: of every layer's products together, at 1 to 64 rows. A device
left out has the medians of the other devices' laws. Data sheets of `hwprofiles/` have the laws, and the time of a step
of small all-reduces. The tables are Vidur's (Copyright (c) Microsoft Corporation, MIT licence; data/profiling):
vidur_ops.csv (device, model, tp, op, rows, n, k, time_us) and vidur_all_reduce.csv (network, num_workers,
devices_per_node, size_bytes, min_us); and LLMServingSim's. What contexts add is from depths.csv and our own lanes.
Writes benchmarks/results/kernel-laws.json.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from _common import RESULTS, arguments, write_result
from _depths import depth_results, own_lanes, read_depths
from _served_curves import SHAPES, lines_of

from hwprofiles.model_shape import model_shape
from hwprofiles.sheets import device_sheet

SHEETS: Final = {
    "h100": "h100-sxm",
    "a100": "a100-80-sxm",
    "a40": "a40",
    "RTX4090": "rtx4090",
    "A6000": "rtx-a6000",
    "RTX3090": "rtx3090",
}
"""Devices of the tables that have a law. An RTX PRO 6000 has none: matrices of small models stay in its 128 MB of
cache, and are read faster than memory is (a layer left out is off by 5.8 % in the median). Nor has a TPU v6e."""
SERVED: Final = {
    "qkv_proj": lambda one: (one.head_dim * (one.num_heads + 2 * one.num_kv_heads), one.hidden_size),
    "q_proj": lambda one: (one.head_dim * one.num_heads, one.hidden_size),
    "k_proj": lambda one: (one.head_dim * one.num_kv_heads, one.hidden_size),
    "v_proj": lambda one: (one.head_dim * one.num_kv_heads, one.hidden_size),
    "o_proj": lambda one: (one.hidden_size, one.head_dim * one.num_heads),
    "gate_up_proj": lambda one: (2 * one.intermediate_size, one.hidden_size),
    "gate_proj": lambda one: (one.intermediate_size, one.hidden_size),
    "up_proj": lambda one: (one.intermediate_size, one.hidden_size),
    "down_proj": lambda one: (one.hidden_size, one.intermediate_size),
    "lm_head": lambda one: (one.vocab_size, one.hidden_size),
}
"""Products of vLLM's layers and of transformers', by the sizes of their matrices; ranks share the former."""
_SHAPES: Final = SHAPES | {"Phi-mini-MoE-instruct": "phi-3.5-moe"}
"""The latter differ in their experts, which are no part of a law."""
_SHARED_INPUT: Final = ("o_proj", "down_proj")
MOST_ROWS: Final = 64
LARGEST_REDUCE_BYTES: Final = 65536
"""States of a few rows: what an all-reduce of a verification moves."""
LARGEST_BYTES: Final = 1_000_000
"""Of 64 rows."""
NETWORKS: Final = {"h100_dgx": "h100-sxm", "a100_dgx": "a100-80-sxm"}
SOURCE: Final = "Vidur, data/profiling, and LLMServingSim, profiler/perf (both MIT)"
OUT: Final = RESULTS / "kernel-laws.json"
_WEIGHT_BYTES: Final = 2


class Product(NamedTuple):
    """One timed product of `rows` rows with an n x k matrix."""

    model: str
    tp: int
    op: str
    rows: int
    n: int
    k: int
    seconds: float


class Law(NamedTuple):
    """The three numbers of a device."""

    start_s: float
    memory_efficiency: float
    unhidden_share: float


def main() -> None:
    """Fit all devices and write what came out."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    tables = read_products(folder / "vidur_ops.csv")
    for name in ("llmservingsim_v0_layers.csv", "llmservingsim_dense.csv"):
        tables |= read_served(folder / name)
    found = {sheet: fitted(tables[device], *_peaks(sheet)) for device, sheet in SHEETS.items()}
    for device, sheet in SHEETS.items():
        others = [Law(**of["law"]) for other, of in found.items() if other != sheet]
        law = Law(*map(median, zip(*others, strict=True)))
        found[sheet]["device_left_out"] = worst_and_median(layer_errors(law, tables[device], *_peaks(sheet)))
    reduced = read_all_reduces(folder / "vidur_all_reduce.csv")
    by_context = depth_results(read_depths(), own_lanes())
    told = {"measured": {}, "source": SOURCE, "devices": found, "all_reduces": reduced, "by_context": by_context}
    write_result(OUT, told)
    for device, of in found.items():
        print(device, of["law"], of["error"], of["device_left_out"])
    for name, judged in by_context["guesses"].items():
        print(name, judged)


def read_products(path: Path) -> dict[str, list[Product]]:
    """Return the products of every device, of at most `MOST_ROWS` rows."""
    found = defaultdict[str, list[Product]](list)
    for row in lines_of(path):
        if row["n"] and int(row["rows"]) <= MOST_ROWS:
            sizes = (int(row[name]) for name in ("rows", "n", "k"))
            product = Product(row["model"], int(row["tp"]), row["op"], *sizes, float(row["time_us"]) * 1e-6)
            found[row["device"]].append(product)
    return dict(found)


def read_served(path: Path) -> dict[str, list[Product]]:
    """Return the products of every device of LLMServingSim's, of at most `MOST_ROWS` rows."""
    found = defaultdict[str, list[Product]](list)
    for row in lines_of(path):
        if row["device"] in SHEETS and row["layer"] in SERVED and int(row["rows"]) <= MOST_ROWS:
            n, k = SERVED[row["layer"]](model_shape(_SHAPES[row["model"]]))
            tp = int(row["tp"])
            n, k = (n, k // tp) if row["layer"] in _SHARED_INPUT else (n // tp, k)
            product = Product(row["model"], tp, row["layer"], int(row["rows"]), n, k, float(row["time_us"]) * 1e-6)
            found[row["device"]].append(product)
    return dict(found)


def read_all_reduces(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the median time of small all-reduces, by device and number of devices of one node, and a law by size.

    The law is a start, and bytes over a bandwidth; its error tells that these tables do not support one.
    """
    found = defaultdict[str, dict[int, list[tuple[int, float]]]](lambda: defaultdict(list))
    for row in lines_of(path):
        is_one_node = row["devices_per_node"] == row["num_workers"]
        if row["network"] in NETWORKS and is_one_node and int(row["size_bytes"]) <= LARGEST_BYTES:
            one = int(row["size_bytes"]), float(row["min_us"]) * 1e-6
            found[NETWORKS[row["network"]]][int(row["num_workers"])].append(one)
    return {
        device: {str(num): _all_reduces(times) for num, times in sorted(by_number.items())}
        for device, by_number in found.items()
    }


def _all_reduces(timed: Sequence[tuple[int, float]]) -> dict[str, Any]:
    sizes, taken = np.array(timed).T
    design = np.array([np.ones_like(sizes), sizes]).T / taken[:, None]
    law = np.linalg.lstsq(design, np.ones_like(taken), rcond=None)[0]
    return {
        "small_s": median(taken[sizes <= LARGEST_REDUCE_BYTES]),
        "by_size": {"start_s": law[0], "s_per_byte": law[1], "error": worst_and_median(design @ law - 1)},
    }


def worst_and_median(errors: Iterable[float]) -> dict[str, float]:
    """Return both of the absolute errors."""
    own = [abs(one) for one in errors]
    return {"median": median(own), "worst": max(own)}


def fitted(products: Sequence[Product], bytes_per_s: float, flops: float) -> dict[str, Any]:
    """Return the law of all models, the spans of its numbers, and errors on models left out."""
    is_one_model = len({one.model for one in products}) == 1
    group = {one: one.op if is_one_model else one.model for one in products}
    laws, errors = {}, {}
    for model in sorted(set(group.values())):
        laws[model] = law_of([one for one in products if group[one] != model], bytes_per_s, flops)
        asked = [one for one in products if group[one] == model]
        errors[model] = list(layer_errors(laws[model], asked, bytes_per_s, flops))
    together = sorted(abs(one) for own in errors.values() for one in own)
    spans = {
        name: [min(getattr(law, name) for law in laws.values()), max(getattr(law, name) for law in laws.values())]
        for name in Law._fields
    }
    return {
        "law": law_of(products, bytes_per_s, flops)._asdict(),
        "span": spans,
        "error": {"median": median(together), "of_90": float(np.quantile(together, 0.9)), "worst": together[-1]},
        "left_out": {model: worst_and_median(own) for model, own in errors.items()},
        "num_products": len(products),
    }


def law_of(products: Sequence[Product], bytes_per_s: float, flops: float) -> Law:
    """Fit the law by least squares of relative errors."""
    design = np.array([_terms(one, bytes_per_s, flops) for one in products])
    taken = np.array([one.seconds for one in products])
    start_s, reading, computing = np.linalg.lstsq(design / taken[:, None], np.ones_like(taken), rcond=None)[0]
    return Law(float(start_s), float(1 / reading), float(computing))


def layer_errors(law: Law, products: Sequence[Product], bytes_per_s: float, flops: float) -> Iterator[float]:
    """Yield the relative error of a layer's products together, by tensor parallelism and rows."""
    layers = defaultdict[tuple[int, int], list[Product]](list)
    for one in products:
        layers[one.tp, one.rows].append(one)
    numbers = (law.start_s, 1 / law.memory_efficiency, law.unhidden_share)
    for own in layers.values():
        predicted_s = sum(float(np.dot(_terms(one, bytes_per_s, flops), numbers)) for one in own)
        yield predicted_s / sum(one.seconds for one in own) - 1


def _terms(one: Product, bytes_per_s: float, flops: float) -> tuple[float, float, float]:
    return 1.0, _WEIGHT_BYTES * one.n * one.k / bytes_per_s, 2.0 * one.rows * one.n * one.k / flops


def _peaks(sheet: str) -> tuple[float, float]:
    found = device_sheet(sheet)
    assert found.memory_bytes_per_s is not None, "a sheet without a bandwidth"
    assert found.bf16_flops is not None, "a sheet without a peak"
    return found.memory_bytes_per_s.value, found.bf16_flops.value


if __name__ == "__main__":
    main()
