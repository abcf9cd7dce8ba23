"""Vidur's tables of products (`compute/DEVICE/MODEL/mlp.csv`): a pass as the sum of its kernels, without attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from planner.imported.bench_curve import MOST_ROWS, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page
from planner.imported.named_shape import named_shape

_FIRST, _LAST = "time_stats.", ".median"
_ONCE: Final = "emb"
_TWICE: Final = "add"
"""The residual sums after attention and after the feed-forward part."""


def is_vidur(page: Page) -> bool:
    """Return whether a page is a table of a model's products."""
    return page.fields >= {"num_tokens", "num_tensor_parallel_workers", "time_stats.mlp_down_proj.median"}


def read_vidur(page: Page, target: str | None) -> Iterator[Sample]:
    """Yield passes by rows, for every number of devices."""
    shape = named_shape(page.path, target)
    names = [name for name in page.rows[0].fields if name.startswith(_FIRST) and name.endswith(_LAST)]
    parts = page.path.resolve().parts
    device = parts[parts.index("compute") + 1] if "compute" in parts[:-2] else "the device"
    times = defaultdict[tuple[int, int], list[float]](list)
    for row in page.rows:
        rows, workers = row.count("num_tokens"), row.count("num_tensor_parallel_workers", least=1)
        if 1 <= rows <= MOST_ROWS:
            calls = {name: _calls(name.removeprefix(_FIRST).removesuffix(_LAST), shape.num_layers) for name in names}
            timed = [name for name in names if row.fields[name] not in (None, "")]
            times[workers, rows].append(sum(calls[name] * row.number(name) * 1e-3 for name in timed))
    for (workers, rows), seconds in sorted(times.items()):
        settings = f"of {workers} devices, without attention, output head and what devices exchange"
        of = CurveOf("vidur", shape.name, device, "several sequences", 0, settings)
        yield Sample(of, rows, BenchTime.of(sum(seconds) / len(seconds)), is_plain=rows == 1)


def _calls(name: str, num_layers: int) -> int:
    if name == _ONCE:
        return 1
    return 2 * num_layers if name == _TWICE else num_layers
