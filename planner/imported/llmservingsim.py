"""Folders and tables of LLMServingSim's profiler: a pass as the sum of its kernels, one after the other.

Its `tpN` folders hold `dense.csv` (by rows), `per_sequence.csv` (output head) and `attention.csv` (by sequences and
cached tokens); the older `layers.csv` holds everything in one. Between kernels nothing waits, as in a CUDA graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError
from planner.imported.bench_curve import MOST_ROWS, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page
from planner.imported.named_shape import named_shape

_DENSE: Final = {"layer", "tokens", "time_us"}
_OLDER: Final = {"layer_name", "input", "kv_cache", "latency(ns)"}
_ONCE: Final = frozenset({"embedding", "final_layernorm", "lm_head", "sampler"})
_TWICE: Final = "layernorm"
"""Before attention and before the feed-forward part; every other kernel is called once a layer."""
_ATTENTION: Final = "attention"
Times = Mapping[str, Mapping[int, float]]
"""Seconds by kernel and rows."""


def is_llmservingsim(page: Page) -> bool:
    """Return whether a page is one of its tables by rows."""
    return page.fields >= _DENSE or page.fields >= _OLDER


def folder_pages(folder: Path) -> list[Path]:
    """Return the tables to read in a folder of profiles and in all below it, LLMServingSim's and Vidur's."""
    found = [path for name in ("dense.csv", "layers.csv", "mlp.csv") for path in sorted(folder.rglob(name))]
    if not found:
        raise ConfigError(f"{folder}: no dense.csv or layers.csv (LLMServingSim) and no mlp.csv (Vidur) in this folder")
    return found


def read_llmservingsim(page: Page, target: str | None, context: int) -> Iterator[Sample]:
    """Yield passes over every number of rows that all kernels were timed with."""
    shape = named_shape(page.path, target)
    if shape.num_experts:
        raise ConfigError(f"{page.path}: {shape.name} is a mixture of experts; tables of dense models are read")
    if page.fields >= _OLDER:
        times, settings = _older(page), "the kernels alone, one after the other"
    else:
        times, context = _tables(page, context)
        settings = "the kernels alone, one after the other"
    if "lm_head" not in times:
        settings += ", without output head"
    if _ATTENTION not in times and "attn" not in times:
        settings, context = f"{settings}, without attention", 0
    device = next((part for part in reversed(page.path.resolve().parts[:-1]) if part in _devices(page)), "the device")
    of = CurveOf("vllm", shape.name, device, "several sequences", context, settings)
    for rows in sorted(set.intersection(*({*by_rows} for by_rows in times.values()))):
        if 1 <= rows <= MOST_ROWS:
            calls = {name: _calls(name, shape.num_layers) for name in times}
            seconds = sum(calls[name] * by_rows[rows] for name, by_rows in times.items())
            yield Sample(of, rows, BenchTime.of(seconds), is_plain=rows == 1)


def _calls(name: str, num_layers: int) -> int:
    if name in _ONCE:
        return 1
    return 2 * num_layers if name == _TWICE else num_layers


def _older(page: Page) -> Times:
    found = defaultdict[str, dict[int, float]](dict)
    for row in page.rows:
        found[row.text("layer_name")].setdefault(row.count("input"), row.time_s("latency(ns)", 1e-9))
    return found


def _tables(page: Page, context: int) -> tuple[Times, int]:
    """Return all kernels, and the cached tokens that attention was timed with."""
    found = defaultdict[str, dict[int, float]](dict)
    heads, attention = (page.path.with_name(name) for name in ("per_sequence.csv", "attention.csv"))
    pages = {"tokens": page} | ({"sequences": Page.read(heads)} if heads.is_file() else {})
    for rows, own in pages.items():
        for row in own.rows:
            found[row.text("layer")][row.count(rows)] = row.time_s("time_us", 1e-6)
    if attention.is_file():
        plain = [row for row in Page.read(attention).rows if not row.count("prefill_chunk") and row.count("n_decode")]
        contexts = {row.count("kv_decode") for row in plain}
        context = min(contexts, key=lambda one: abs(one - context), default=context)
        for row in plain:
            if row.count("kv_decode") == context:
                found[_ATTENTION][row.count("n_decode")] = row.time_s("time_us", 1e-6)
    return found, context


def _devices(page: Page) -> set[str]:
    """Return the folders that are named by a device: those above the model's maker."""
    parts = page.path.resolve().parts
    return {parts[place + 1] for place, part in enumerate(parts[:-2]) if part in ("perf", "perf_models", "compute")}
