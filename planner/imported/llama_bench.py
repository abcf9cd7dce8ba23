"""The output of llama-bench and llama-batched-bench, in every form of it.

A prompt of a few tokens is one pass over so many rows; `llama-bench -p 1,2,3,4,5,6,8,12,16 -n 32` times a curve in a
minute. Rows of `llama-batched-bench` are those of several sequences, each with a cache of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from decoding.errors import cut
from planner.imported.bench_curve import MOST_ROWS, BenchTime, CurveOf, Sample
from planner.imported.engine_page import Page, PageRow

_TEST: Final = re.compile(r"(pp|tg) ?(\d{1,9})(?: @ d(\d{1,9}))?$")
_RATE: Final = re.compile(r"([\d.]+)(?: *± *([\d.]+))?$")
_SETTINGS: Final = ("n_threads", "n_gpu_layers", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn")
"""What curves of one file may differ in; of tables every column that is not of one test."""
_OF_ONE_TEST: Final = ("model", "size", "params", "test", "t/s")
_COUNTS: Final = ("n_prompt", "n_gen", "n_depth")
_ENGINE: Final = "llama.cpp"


def is_llama_bench(page: Page) -> bool:
    """Return whether a page has the fields of one of these benchmarks."""
    return "n_prompt" in page.fields or page.fields >= {"test", "t/s"}


def is_batched_bench(page: Page) -> bool:
    """Return the same of sequences that are decoded at once."""
    return page.fields >= {"t_tg", "pl"} or page.fields >= {"T_TG s", "B"}


def read_llama_bench(page: Page) -> Iterator[Sample]:
    """Yield the time of every test of one sequence, and leave out long prompts."""
    for row in page.rows:
        found = _of_table(row) if "test" in row.fields else _of_entry(row)
        if found is not None:
            yield found


def read_batched_bench(page: Page) -> Iterator[Sample]:
    """Yield the steps of several sequences after their prompts; the model is called as the file, which names none."""
    for row in page.rows:
        names = ("pl", "tg", "pp", "t_tg") if "t_tg" in row.fields else ("B", "TG", "PP", "T_TG s")
        rows, num_new, context = row.count(names[0]), row.count(names[1], least=1), row.count(names[2])
        if 1 <= rows <= MOST_ROWS:
            of = CurveOf(_ENGINE, page.path.stem, "the device", "several sequences", context, _settings(row))
            yield Sample(of, rows, BenchTime.of(row.time_s(names[3]) / num_new), is_plain=rows == 1)


def _of_entry(row: PageRow) -> Sample | None:
    num_prompt, num_new, depth = (row.count(name) if name in row.fields else 0 for name in _COUNTS)
    deviation_s = row.number("stddev_ns") * 1e-9 if row.fields.get("stddev_ns") else 0.0
    return _sample(row, (num_prompt, num_new), depth, BenchTime.of(row.time_s("avg_ns", 1e-9), deviation_s))


def _of_table(row: PageRow) -> Sample | None:
    """Return what a row of llama-bench's table tells, whose test is called pp8 or tg32; None of other tests."""
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
    if (num_prompt and num_new) or not 1 <= (num_prompt or 1) <= MOST_ROWS:
        return None
    model, device = row.text("model_type", "model"), row.text("gpu_info", "cpu_info", "backends", "backend")
    if num_new:
        time = BenchTime(*(seconds / num_new for seconds in time))
    of = CurveOf(_ENGINE, model, device, "one sequence", depth, _settings(row))
    return Sample(of, num_prompt or 1, time, is_plain=not num_prompt)


def _settings(row: PageRow) -> str:
    """Return in which settings a row was timed, as `n_threads 4`."""
    fields = row.fields
    names = [name for name in fields if name not in _OF_ONE_TEST] if "test" in fields else _SETTINGS
    return cut(", ".join(f"{name} {fields[name]}" for name in names if fields.get(name) not in (None, "")), 200)
