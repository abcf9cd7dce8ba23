"""Benchmarks of vLLM and SGLang: what a step takes by how many sequences are decoded, and what they say of speculation.

Their rows are those of several sequences. Steps of a run that speculated are no plain passes: of such a run only the
acceptance is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from decoding.errors import ConfigError
from planner.imported.accepted import EngineAcceptance
from planner.imported.bench_curve import MOST_ROWS, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page, PageRow

_LATENCY: Final = frozenset({"avg_latency", "latencies"})
_SERVING: Final = frozenset({"median_itl_ms", "completed"})
_ONE_BATCH: Final = ({"batch_size", "median_decode_latency"}, {"batch_size", "output_len", "last_ttft"})
Sizes = Mapping[str, int]
"""Of a run whose file does not tell them: `rows` decoded at once, and `new_tokens` of each."""


def is_vllm_latency(page: Page) -> bool:
    """Return whether a page is of `vllm bench latency`, as it is or in PyTorch's form."""
    return page.fields >= _LATENCY or page.fields >= {"benchmark", "metric"}


def is_serving(page: Page) -> bool:
    """Return whether a page is of `vllm bench serve` or SGLang's `bench_serving`."""
    return page.fields >= _SERVING


def is_one_batch(page: Page) -> bool:
    """Return whether a page is of SGLang's `bench_one_batch`, in its process or by its server."""
    return any(page.fields >= known for known in _ONE_BATCH)


def read_vllm_latency(page: Page, sizes: Sizes) -> Iterator[Sample]:
    """Yield the time of a step: that of all requests at once, over their new tokens."""
    for row in page.rows:
        asked = dict(sizes)
        model, values = "the model", row
        if "benchmark" in row.fields:
            values, told = row.inner("metric"), row.inner("benchmark").inner("extra_info").inner("args")
            if values.fields.get("name") not in (None, "latency"):
                continue
            asked |= {"rows": told.count("batch_size", least=1), "new_tokens": told.count("output_len", least=1)}
            model, seconds = told.text("model"), values.fields.get("benchmark_values")
        else:
            seconds = row.fields["latencies"]
        if not {"rows", "new_tokens"} <= asked.keys():
            msg = f"{page.path}: vLLM writes neither the batch size nor the new tokens of a latency here"
            raise ConfigError(f"{msg}; say them: --batch-size 8 --new-tokens 128")
        times = [PageRow(row.path, row.line, {"latencies": one}).time_s("latencies") for one in _list(values, seconds)]
        mean_s = sum(times) / len(times)
        deviation_s = (sum((one - mean_s) ** 2 for one in times) / max(1, len(times) - 1)) ** 0.5
        of = CurveOf("vllm", model, "the device", "several sequences", 0, "a prompt's reading is in it")
        yield from _few(of, asked["rows"], *(one / asked["new_tokens"] for one in (mean_s, deviation_s)))


def read_serving(page: Page) -> Iterator[Sample | EngineAcceptance]:
    """Yield the median time between tokens, of as many sequences as were at work, or how speculation went."""
    for row in page.rows:
        engine = "vllm" if "model_id" in row.fields else "sglang"
        found = list(_speculated(row, engine))
        yield from found
        at_once = row.fields.get("max_concurrency")
        if not found and at_once is not None:
            model = str(row.fields.get("model_id") or "the model")
            context = row.count("total_input_tokens") // max(1, row.count("completed"))
            of = CurveOf(engine, model, "the device", "several sequences", context, "through its server")
            yield from _few(of, row.count("max_concurrency", least=1), row.time_s("median_itl_ms", 1e-3))


def read_one_batch(page: Page) -> Iterator[Sample | EngineAcceptance]:
    """Yield the median step of a batch, or the mean of all, less what the prompts took."""
    for row in page.rows:
        rows, context = row.count("batch_size", least=1), row.count("input_len")
        of = CurveOf("sglang", "the model", "the device", "several sequences", context)
        if "median_decode_latency" in row.fields:
            yield from _few(of, rows, row.time_s("median_decode_latency"))
        elif (row.fields.get("acc_length") or 0) > 1:
            mean = row.number("acc_length", least=1)
            yield EngineAcceptance.of_mean("sglang", row.path, mean, drafted=None)
        else:
            decoding_s = row.time_s("latency") - row.number("last_ttft")
            if decoding_s <= 0:
                raise row.wrong("latency", "more than last_ttft")
            yield from _few(of, rows, decoding_s / max(1, row.count("output_len", least=1) - 1))


def _speculated(row: PageRow, engine: str) -> Iterator[EngineAcceptance]:
    if "spec_decode_per_position_acceptance_rates" in row.fields:
        shares = _list(row, row.fields["spec_decode_per_position_acceptance_rates"])
        rounds = row.count("spec_decode_num_drafts") if "spec_decode_num_drafts" in row.fields else None
        yield EngineAcceptance.of_shares(engine, row, shares, num_rounds=rounds)
    elif row.fields.get("accept_length"):
        yield EngineAcceptance.of_mean(engine, row.path, row.number("accept_length", least=1), drafted=None)


def _few(of: CurveOf, rows: int, time_s: float, deviation_s: float = 0.0) -> Iterator[Sample]:
    if rows <= MOST_ROWS:
        yield Sample(of, rows, BenchTime.of(time_s, deviation_s), is_plain=rows == 1)


def _list(row: PageRow, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        field = next((name for name, value in row.fields.items() if value is values), "latencies")
        raise row.wrong(field, "a list of numbers")
    return values
