"""Reads tables of single kernels; a pass takes the sum of the model's kernels, as in a CUDA graph.

LLMServingSim's `tpN` folders hold `dense.csv` (by rows), `per_sequence.csv` (`lm_head`) and `attention.csv` (by
sequences and cached tokens); its older `layers.csv` holds everything in one. Vidur's `compute/DEVICE/MODEL/mlp.csv`
holds matrix products and norms. AIConfigurator's `gemm_perf.txt` holds matrix products of many sizes: sizes between
them are interpolated (linear in logarithms), sizes beyond them are refused.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from math import exp, isnan, log, nan
from pathlib import Path
from typing import Final

import numpy as np

from decoding.errors import ConfigError
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models
from hwprofiles.models.model_names import named_shape
from planner.imported.bench_curves import MOST_ROWS, UNNAMED, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page, Told


def shape_of(path: Path, target: str | None) -> ModelShape:
    """Return the shape of `target`, or else of the shipped model that a parent folder of the file is named after."""
    named = filter(None, (named_shape(part, shipped_models()) for part in reversed(path.resolve().parts)))
    told = target or next((one.shape for one in named), None)
    if told is None:
        msg = "the table does not say how many layers the model has: name it, --target llama-3.1-8b"
        raise ConfigError(f"{path}: {msg}")
    return model_shape(told)


def _dense_shape(page: Page, target: str | None) -> ModelShape:
    shape = shape_of(page.path, target)
    if shape.num_experts:
        raise ConfigError(f"{page.path}: {shape.name} is a mixture of experts; only tables of dense models are read")
    return shape


OLDER: Final = {"layer_name", "input", "kv_cache", "latency(ns)"}
"""Fields of LLMServingSim's older tables."""
_ONCE: Final = frozenset({"embedding", "final_layernorm", "lm_head", "sampler"})
_SHARED: Final = re.compile(r"tp(\d{1,4})")
"""The folder of tables of tensor parallelism: each kernel computes one device's share."""
_TWICE: Final = "layernorm"
"""The kernel that a layer calls twice, before attention and before the feed-forward part; all others once."""
_ATTENTION, _OLDER_ATTENTION = "attention", "attn"
_Times = Mapping[str, Mapping[int, float]]
"""Seconds by kernel and rows."""


def folder_pages(folder: Path) -> list[Path]:
    """Return the tables of LLMServingSim and Vidur in a folder and all folders below it."""
    found = [path for name in ("dense.csv", "layers.csv", "mlp.csv") for path in sorted(folder.rglob(name))]
    if not found:
        msg = "no dense.csv or layers.csv (LLMServingSim) and no mlp.csv (Vidur) in this folder"
        raise ConfigError(f"{folder}: {msg}; name other files one by one")
    return found


def read_llmservingsim(page: Page, told: Told) -> Iterator[Sample]:
    """Yield a pass for every number of rows that all kernels were timed with, and every number of devices."""
    shape, parts = _dense_shape(page, told.target), page.path.resolve().parts[:-1]
    device = next((part for part in reversed(parts) if part in _devices(page)), UNNAMED)
    of_folder = _SHARED.fullmatch(parts[-1])
    workers = 1 if of_folder is None else int(of_folder[1])
    tables = _older(page, told.context) if page.fields >= OLDER else {workers: _tables(page, told.context)}
    for shared, (times, context) in tables.items():
        has_attention = bool(times.keys() & {_ATTENTION, _OLDER_ATTENTION})
        settings = "sum of the kernels"
        settings += ", without lm_head" * ("lm_head" not in times) + ", without attention" * (not has_attention)
        if shared > 1:
            settings += f", of {shared} devices, without communication"
        of = CurveOf("vllm", shape.name, device, "several sequences", context if has_attention else 0, settings)
        for rows in sorted(set.intersection(*({*by_rows} for by_rows in times.values()))):
            calls = {name: _calls(name, shape.num_layers, _ONCE, _TWICE) for name in times}
            seconds = sum(calls[name] * by_rows[rows] for name, by_rows in times.items())
            yield Sample(of, rows, BenchTime.of(seconds))


def _calls(name: str, num_layers: int, once: Collection[str], twice: str) -> int:
    return 1 if name in once else 2 * num_layers if name == twice else num_layers


def _older(page: Page, context: int) -> dict[int, tuple[_Times, int]]:
    """Return, by number of devices, the times of all kernels and the cached tokens that attention was timed with."""
    found = defaultdict[int, dict[str, dict[int, float]]](lambda: defaultdict(dict))
    cached = {row.count("kv_cache") for row in page.rows if row.text("layer_name") == _OLDER_ATTENTION}
    context = _nearest(cached, context)
    for row in page.rows:
        shared = row.count("tp_size", least=1) if "tp_size" in row.fields else 1
        name = row.text("layer_name")
        if name != _OLDER_ATTENTION or row.count("kv_cache") == context:
            found[shared][name].setdefault(row.count("input"), row.time_s("latency(ns)", 1e-9))
    return {shared: (times, context) for shared, times in found.items()}


def _tables(page: Page, context: int) -> tuple[_Times, int]:
    found = defaultdict[str, dict[int, float]](dict)
    heads, attention = (page.path.with_name(name) for name in ("per_sequence.csv", "attention.csv"))
    pages = {"tokens": page} | ({"sequences": Page.read(heads)} if heads.is_file() else {})
    for rows, own in pages.items():
        for row in own.rows:
            found[row.text("layer")][row.count(rows)] = row.time_s("time_us", 1e-6)
    if attention.is_file():
        plain = [row for row in Page.read(attention).rows if not row.count("prefill_chunk") and row.count("n_decode")]
        context = _nearest({row.count("kv_decode") for row in plain}, context)
        for row in plain:
            if row.count("kv_decode") == context:
                found[_ATTENTION][row.count("n_decode")] = row.time_s("time_us", 1e-6)
    return found, context


def _nearest(contexts: Collection[int], context: int) -> int:
    """Return the one of `contexts` that is nearest to `context`; `context` itself if there is none."""
    return min(contexts, key=lambda one: abs(one - context), default=context)


def _devices(page: Page) -> set[str]:
    """Return the names of folders that are named after a device: those directly below the root of the profiles."""
    parts = page.path.resolve().parts
    return {parts[place + 1] for place, part in enumerate(parts[:-2]) if part in ("perf", "perf_models", "compute")}


_FIRST, _LAST = "time_stats.", ".median"
_VIDUR_ONCE: Final = ("emb",)
_VIDUR_TWICE: Final = "add"
"""The kernel that a layer calls twice: the residual sums after attention and after the feed-forward part."""


def read_vidur(page: Page, told: Told) -> Iterator[Sample]:
    """Yield a pass for every number of rows and of devices."""
    shape = shape_of(page.path, told.target)
    names = [name for name in page.rows[0].fields if name.startswith(_FIRST) and name.endswith(_LAST)]
    parts = page.path.resolve().parts
    device = parts[parts.index("compute") + 1] if "compute" in parts[:-2] else UNNAMED
    times = defaultdict[tuple[int, int], list[float]](list)
    for row in page.rows:
        rows, workers = row.count("num_tokens"), row.count("num_tensor_parallel_workers", least=1)
        timed = {name.removeprefix(_FIRST).removesuffix(_LAST): name for name in names if row.fields[name]}
        calls = {name: _calls(name, shape.num_layers, _VIDUR_ONCE, _VIDUR_TWICE) for name in timed}
        times[workers, rows].append(sum(calls[name] * row.number(field) * 1e-3 for name, field in timed.items()))
    for (workers, rows), seconds in sorted(times.items()):
        settings = f"of {workers} devices, " * (workers > 1) + "without attention, lm_head and communication"
        of = CurveOf("vidur", shape.name, device, "several sequences", 0, settings)
        yield Sample(of, rows, BenchTime.of(sum(seconds) / len(seconds)))


_Grid = Mapping[int, Mapping[int, float]]
"""Seconds of a matrix product by n and k."""


def read_aiconfigurator(page: Page, told: Told) -> Iterator[Sample]:
    """Yield a pass for every number of rows and every weight format in the table."""
    shape = _dense_shape(page, told.target)
    grids = defaultdict[tuple[str, str, str, int], dict[int, dict[int, float]]](lambda: defaultdict(dict))
    for row in page.rows:
        rows = row.count("m", least=1)
        if rows <= MOST_ROWS:
            kind = row.text("framework"), row.text("device"), row.text("gemm_dtype")
            grids[*kind, rows][row.count("n", least=1)][row.count("k", least=1)] = row.time_s("latency", 1e-3)
    for (framework, device, dtype, rows), grid in sorted(grids.items()):
        settings = f"{dtype}; matrix products only, without attention and norms"
        of = CurveOf(framework.lower(), shape.name, device, "several sequences", 0, settings)
        seconds = sum(calls * _product_s(page, grid, *size) for size, calls in _products(shape).items())
        yield Sample(of, rows, BenchTime.of(seconds))


def _products(shape: ModelShape) -> dict[tuple[int, int], int]:
    width, feed_forward = shape.hidden_size, shape.intermediate_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    found = defaultdict[tuple[int, int], int](int)
    up = 2 * feed_forward if shape.is_gated else feed_forward
    for size in ((query + 2 * kv, width), (width, query), (up, width), (width, feed_forward)):
        found[size] += shape.num_layers
    found[shape.vocab_size, width] += 1
    return found


def _product_s(page: Page, grid: _Grid, n: int, k: int) -> float:
    """Return the time of one product (interpolated); `ConfigError` for sizes beyond the table."""
    logarithm = _between({one: _between({at: log(time_s) for at, time_s in grid[one].items()}, k) for one in grid}, n)
    if isnan(logarithm):
        raise ConfigError(f"{page.path}: no products around n = {n}, k = {k}, which the model needs")
    return exp(logarithm)


def _between(values: Mapping[int, float], at: int) -> float:
    """Return the value at a size, interpolated linearly in the size's logarithm; NaN beyond the sizes."""
    sizes = sorted(values)
    logarithms, found = [log(size) for size in sizes], [values[size] for size in sizes]
    return float(np.interp(log(at), logarithms, found, left=nan, right=nan))
