"""Reads benchmarks of whole passes: llama-bench, llama-batched-bench (all output formats), vLLM's and SGLang's.

A prompt of a few tokens is one pass over as many rows; `llama-bench -p 1,2,3,4,5,6,8,12,16 -n 32` times a curve in a
minute. All others time rows of several sequences, each with a cache of its own. If a run speculated, its steps are not
plain passes, and only its acceptance is read.
"""

import re
from collections.abc import Iterator
from math import inf
from statistics import fmean, stdev
from typing import Any, Final

from decoding.errors import ConfigError
from planner.imported.bench_curves import SERVED, UNNAMED, BenchTime, CurveOf, ModelSize, Sample
from planner.imported.engine_acceptance import EngineAcceptance
from planner.imported.engine_page import Page, PageRow, Told

_TEST: Final = re.compile(r"(pp|tg) ?(\d{1,9})(?: @ d(\d{1,9}))?$")
_RATE: Final = re.compile(r"([\d.]+)(?: *± *([\d.]+))?$")
_NO_SETTINGS: Final = re.compile(
    r"model(_.*)?|size|params|gpu_info|build_number|test(_time)?|n_(prompt|gen|depth)|(avg|stddev|samples)_.*|t/s"
    r"|pl|pp|tg|n_kv(_max)?|t(_.*)?|speed(_.*)?|B|PP|TG|N_KV|[ST](_PP|_TG)? (s|t/s)"
)
"""Columns that describe one test or its model; all other columns are settings that distinguish curves."""
_COUNTS: Final = ("n_prompt", "n_gen", "n_depth")
_ENGINE: Final = "llama.cpp"
_SIZES: Final = (("model_n_params", "params"), ("model_size", "size"))
_SIZE: Final = re.compile(r"([\d.]+) ?([A-Za-z]*)$")
_UNITS: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read_llama_bench(page: Page, _: Told) -> Iterator[Sample]:
    """Yield the time of every test of one sequence."""
    for row in page.rows:
        found = _of_table(row) if "test" in row.fields else _of_entry(row)
        if found is not None:
            yield found


def read_batched_bench(page: Page, _: Told) -> Iterator[Sample]:
    """Yield the decoding steps of several sequences; the format does not name the model."""
    for row in page.rows:
        if row.fields.get("is_tg_separate"):
            raise row.wrong("is_tg_separate", "0: with -tgs each sequence is decoded on its own")
        names = ("pl", "tg", "pp", "t_tg") if "t_tg" in row.fields else ("B", "TG", "PP", "T_TG s")
        rows, num_new, context = row.count(names[0]), row.count(names[1], least=1), row.count(names[2])
        of = CurveOf(_ENGINE, _unnamed(row), UNNAMED, "several sequences", context, _settings(row))
        yield Sample(of, rows, BenchTime.of(row.time_s(names[3]) / num_new))


def _of_entry(row: PageRow) -> Sample | None:
    num_prompt, num_new, depth = (row.count(name) if name in row.fields else 0 for name in _COUNTS)
    deviation_s = row.number("stddev_ns") * 1e-9 if row.fields.get("stddev_ns") else 0.0
    return _sample(row, (num_prompt, num_new), depth, BenchTime.of(row.time_s("avg_ns", 1e-9), deviation_s))


def _of_table(row: PageRow) -> Sample | None:
    """Return the sample of a row of llama-bench's table, for tests such as pp8 or tg32; None for other tests."""
    found = _TEST.match(str(row.fields["test"]))
    if found is None:
        return None
    kind, count, depth = found[1], int(found[2]), int(found[3] or 0)
    rates = _RATE.match(str(row.fields.get("t/s")))
    if rates is None or not count:
        raise row.wrong("t/s" if count else "test", "tokens per second, such as 120.5 ± 0.4, of one token or more")
    rate, deviation = (PageRow(row.path, row.line, {"t/s": text or "0"}) for text in rates.groups())
    time_s = count / rate.time_s("t/s")
    time = BenchTime.of(time_s, time_s * deviation.number("t/s") / rate.time_s("t/s"))
    return _sample(row, (count, 0) if kind == "pp" else (0, count), depth, time)


def _sample(row: PageRow, counts: tuple[int, int], depth: int, time: BenchTime) -> Sample | None:
    num_prompt, num_new = counts
    if num_prompt and num_new:
        return None
    model, device = row.text("model_type", "model"), row.text("gpu_info", "cpu_info", "backends", "backend")
    if num_new:
        time = BenchTime(*(seconds / num_new for seconds in time))
    of = CurveOf(_ENGINE, model, device, "one sequence", depth, _settings(row))
    return Sample(of, num_prompt or 1, time, is_decoding=not num_prompt, model_size=_model_size(row))


def _model_size(row: PageRow) -> ModelSize:
    """Return a model's number of parameters and bytes, written as `8.19 B` or `8190735360`."""
    told = (_SIZE.match(str(row.fields.get(names[0]) or row.fields.get(names[1]))) for names in _SIZES)
    return ModelSize(*(float(one[1]) * _UNITS.get(one[2], 1.0) if one else 0.0 for one in told))


def _settings(row: PageRow) -> str:
    told = {name: value for name, value in row.fields.items() if value not in (None, "")}
    return ", ".join(f"{name} {value}" for name, value in told.items() if not _NO_SETTINGS.fullmatch(name))


def _unnamed(row: PageRow) -> str:
    """Return a name for a model that has none: the run's or the file's, since other files may be of other models."""
    name = row.fields.get("run_name")
    return str(row.path) if name in (None, "", "default") else row.text("run_name")


def read_vllm_latency(page: Page, told: Told) -> Iterator[Sample]:
    """Yield the time of a step: the latency of a batch over the new tokens of each request."""
    for row in page.rows:
        model, values, rows, new_tokens = _unnamed(row), row, told.batch_size, told.new_tokens
        if "benchmark" in row.fields:
            values, args = row.inner("metric"), row.inner("benchmark").inner("extra_info").inner("args")
            if values.fields.get("name") not in (None, "latency"):
                continue
            rows, new_tokens = args.count("batch_size", least=1), args.count("output_len", least=1)
            model, seconds = args.text("model"), values.fields.get("benchmark_values")
        else:
            seconds = row.fields["latencies"]
        if rows is None or new_tokens is None:
            msg = f"{page.path}: vLLM did not write the batch size and the new tokens into this file"
            raise ConfigError(f"{msg}; give both, such as --batch-size 8 --new-tokens 128")
        times_s = [
            PageRow(row.path, row.line, {"latencies": one}).time_s("latencies") / new_tokens
            for one in _list(values, seconds)
        ]
        of = CurveOf("vllm", model, UNNAMED, "several sequences", 0, "prefill included")
        yield Sample(of, rows, BenchTime.of(fmean(times_s), stdev(times_s) if len(times_s) > 1 else 0.0))


def read_serving(page: Page, told: Told) -> Iterator[Sample | EngineAcceptance]:
    """Yield the median time between tokens, with `max_concurrency` as rows; or the acceptance if the run speculated."""
    for row in page.rows:
        engine = "vllm" if "model_id" in row.fields else "sglang"
        found = list(_speculated(row, engine, told.window))
        yield from found
        if not found and row.fields.get("max_concurrency") is None:
            raise row.wrong("max_concurrency", "a number: run the benchmark with, for example, --max-concurrency 4")
        if not found:
            _require_reached(row)
            model = row.text("model_id") if row.fields.get("model_id") else _unnamed(row)
            context = row.count("total_input_tokens") // row.count("completed", least=1)
            of = CurveOf(engine, model, UNNAMED, "several sequences", context, SERVED)
            time_s = row.time_s("median_itl_ms", 1e-3)
            yield Sample(of, row.count("max_concurrency", least=1), BenchTime.of(time_s))


def _require_reached(row: PageRow) -> None:
    """Refuse a run that may never have had `max_concurrency` requests at once."""
    most = row.count("max_concurrency", least=1)
    if row.count("completed", least=1) < most:
        raise row.wrong("completed", f"{most} requests or more, so that max_concurrency is reached")
    if row.fields.get("request_rate") not in (None, "inf", inf):
        raise row.wrong("request_rate", f"inf: requests that come one by one may never be {most} at once")


def read_one_batch(page: Page, told: Told) -> Iterator[Sample | EngineAcceptance]:
    """Yield the median decoding step of a batch, or else the mean one: the latency without the prefill."""
    for row in page.rows:
        rows, context = row.count("batch_size", least=1), row.count("input_len")
        of = CurveOf("sglang", _unnamed(row), UNNAMED, "several sequences", context)
        if "median_decode_latency" in row.fields:
            yield Sample(of, rows, BenchTime.of(row.time_s("median_decode_latency")))
        elif row.fields.get("acc_length") and row.number("acc_length", least=-1) > 1:  # -1 without speculation
            mean = row.number("acc_length", least=1)
            yield EngineAcceptance.of_mean("sglang", row.path, mean, drafted=told.window)
        else:
            decoding_s = row.time_s("latency") - row.number("last_ttft")
            if decoding_s <= 0:
                raise row.wrong("latency", "more than last_ttft")
            yield Sample(of, rows, BenchTime.of(decoding_s / max(1, row.count("output_len", least=1) - 1)))


def _speculated(row: PageRow, engine: str, window: int | None) -> Iterator[EngineAcceptance]:
    by_place = "spec_decode_per_position_acceptance_rates"
    if by_place in row.fields:
        shares = row.fields[by_place]
        if not isinstance(shares, list):
            raise row.wrong(by_place, "a list of numbers")
        accepted, drafted = (row.number(f"spec_decode_{what}_tokens") for what in ("accepted", "draft"))
        counts = row.count("spec_decode_num_drafts", least=1), accepted, drafted
        yield EngineAcceptance.of_places(engine, row, shares, counts, out_of=1.0)
    elif row.fields.get("accept_length"):
        yield EngineAcceptance.of_mean(engine, row.path, row.number("accept_length", least=1), drafted=window)


def _list(row: PageRow, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        field = next((name for name, value in row.fields.items() if value is values), "latencies")
        raise row.wrong(field, "a list of numbers")
    return values
