"""AIConfigurator's tables of products (`gemm_perf.txt`): a pass as the sum of a model's products, nothing else of it.

Their grids hold sizes of no model in particular: a product between those that were timed is taken on the straight line
of logarithms, and none beyond them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import exp, log
from typing import Final

from decoding.errors import ConfigError
from hwprofiles.model_shape import ModelShape
from planner.imported.bench_curve import MOST_ROWS, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page
from planner.imported.named_shape import named_shape

_FIELDS: Final = {"gemm_dtype", "m", "n", "k", "latency"}
Grid = Mapping[int, Mapping[int, float]]
"""Seconds of a product by n and k."""


def is_aiconfigurator(page: Page) -> bool:
    """Return whether a page is a table of products."""
    return page.fields >= _FIELDS


def read_aiconfigurator(page: Page, target: str | None) -> Iterator[Sample]:
    """Yield passes by rows, for every type of weights that the table has."""
    shape = named_shape(page.path, target)
    if shape.num_experts:
        raise ConfigError(f"{page.path}: {shape.name} is a mixture of experts; tables of dense models are read")
    grids = defaultdict[tuple[str, str, str, int], dict[int, dict[int, float]]](lambda: defaultdict(dict))
    for row in page.rows:
        rows = row.count("m", least=1)
        if rows <= MOST_ROWS:
            kind = row.text("framework"), row.text("device"), row.text("gemm_dtype")
            grids[*kind, rows][row.count("n", least=1)][row.count("k", least=1)] = row.time_s("latency", 1e-3)
    for (framework, device, dtype, rows), grid in sorted(grids.items()):
        settings = f"{dtype}; products alone, without attention and norms"
        of = CurveOf(framework.lower(), shape.name, device, "several sequences", 0, settings)
        seconds = sum(calls * _product_s(page, grid, *size) for size, calls in _products(shape).items())
        yield Sample(of, rows, BenchTime.of(seconds), is_plain=rows == 1)


def _products(shape: ModelShape) -> dict[tuple[int, int], int]:
    """Return the products of a pass by (n, k), and how often each is called."""
    width, feed_forward = shape.hidden_size, shape.intermediate_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    found = defaultdict[tuple[int, int], int](int)
    up = 2 * feed_forward if shape.is_gated else feed_forward
    for size in ((query + 2 * kv, width), (width, query), (up, width), (width, feed_forward)):
        found[size] += shape.num_layers
    found[shape.vocab_size, width] += 1
    return found


def _product_s(page: Page, grid: Grid, n: int, k: int) -> float:
    """Return the time of one product; `ConfigError` where the table does not reach as far."""
    around = [(one, _between({at: log(time_s) for at, time_s in grid[one].items()}, k)) for one in _ends([*grid], n)]
    known = {one: value for one, value in around if value is not None}
    value = _between(known, n) if around and len(known) == len(around) else None
    if value is None:
        raise ConfigError(f"{page.path}: no products around n = {n}, k = {k}, which the model has")
    return exp(value)


def _between(values: Mapping[int, float], at: int) -> float | None:
    ends = _ends([*values], at)
    if not ends:
        return None
    low, high = ends[0], ends[-1]
    share = 0.0 if low == high else log(at / low) / log(high / low)
    return values[low] * (1 - share) + values[high] * share


def _ends(sizes: list[int], at: int) -> list[int]:
    """Return the size itself, or the two around it; none where it lies outside."""
    ordered = sorted(sizes)
    place = bisect_left(ordered, at)
    if place < len(ordered) and ordered[place] == at:
        return [at]
    return ordered[place - 1 : place + 1] if 0 < place < len(ordered) else []
