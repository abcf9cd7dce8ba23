"""Imports files that engines wrote: one reader for each format, chosen by a file's content."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from decoding.errors import ConfigError
from planner.imported.bench_curves import MOST_ROWS, BenchCurve, Sample, curves_of
from planner.imported.engine_acceptance import RATES, SHARES, EngineAcceptance, read_speculation_profile
from planner.imported.engine_answers import is_answers, read_answers
from planner.imported.engine_page import Page, Told
from planner.imported.kernel_tables import OLDER, folder_pages, read_aiconfigurator, read_llmservingsim, read_vidur
from planner.imported.pass_benchmarks import (
    read_batched_bench,
    read_llama_bench,
    read_one_batch,
    read_serving,
    read_vllm_latency,
)
from planner.imported.server_metrics import is_metrics, read_metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """The content of all files: curves of what rows cost, and how often drafted tokens were accepted.

    `unread` has the fields of `Told` that no file needed; `repeated` says which files were given twice.
    """

    curves: tuple[BenchCurve, ...]
    acceptance: tuple[EngineAcceptance, ...]
    unread: frozenset[str]
    repeated: tuple[str, ...] = ()


Found = Sample | EngineAcceptance


def _has(*known: Collection[str]) -> Callable[[Page], bool]:
    """Return a test of whether a page has all fields of one of these sets."""
    return lambda page: any(page.fields.issuperset(fields) for fields in known)


class Reader(NamedTuple):
    """How a format is recognised, what reads it, and which fields of `Told` it uses."""

    looks_so: Callable[[Page], bool]
    read: Callable[[Page, Told], Iterable[Found]]
    options: tuple[str, ...] = ()


READERS: Final = {
    "metrics of vLLM, llama.cpp, SGLang or TensorRT-LLM": Reader(is_metrics, read_metrics, ("window",)),
    "speculation_profile.json": Reader(
        _has(*(("schema_version", rates) for rates in (RATES, SHARES, "measured"))), read_speculation_profile
    ),
    "answers of llama-server, vLLM or SGLang, TensorRT-LLM's iterations": Reader(is_answers, read_answers, ("window",)),
    "llama-bench": Reader(_has(["n_prompt"], ["test", "t/s"]), read_llama_bench),
    "llama-batched-bench": Reader(_has(["t_tg", "pl"], ["T_TG s", "B"]), read_batched_bench),
    "vLLM's bench latency": Reader(
        _has(["avg_latency", "latencies"], ["benchmark", "metric"]), read_vllm_latency, ("batch_size", "new_tokens")
    ),
    "bench serve of vLLM, bench_serving of SGLang": Reader(
        _has(["median_itl_ms", "completed"]), read_serving, ("window",)
    ),
    "SGLang's bench_one_batch": Reader(
        _has(["batch_size", "median_decode_latency"], ["batch_size", "output_len", "last_ttft"]),
        read_one_batch,
        ("window",),
    ),
    "LLMServingSim": Reader(_has(["layer", "tokens", "time_us"], OLDER), read_llmservingsim),
    "Vidur": Reader(_has(["num_tokens", "num_tensor_parallel_workers", "time_stats.mlp_down_proj.median"]), read_vidur),
    "AIConfigurator's products": Reader(_has(["gemm_dtype", "m", "n", "k", "latency"]), read_aiconfigurator),
}
"""Readers by the usual name of a format."""
_PARQUET: Final = b"PAR1"


def import_files(paths: Sequence[Path], told: Told) -> Imported:
    """Return the content of files and folders; times with the same settings make one curve, also across files.

    Raises `ConfigError`, which names file, line, field, value and what was expected.
    """
    samples, acceptance = list[tuple[str, Sample]](), list[EngineAcceptance]()
    unread = {name for name in ("window", "batch_size", "new_tokens") if getattr(told, name) is not None}
    pages, repeated = _once(page for one in paths for page in (folder_pages(one) if one.is_dir() else [one]))
    names = _names(pages)
    for path in pages:
        before = len(samples) + len(acceptance)
        page = _page(path)
        reader = _reader(page)
        unread.difference_update(reader.options)
        for found in reader.read(page, told):
            if isinstance(found, EngineAcceptance):
                acceptance.append(replace(found, source=names[path]))
            elif 1 <= found.rows <= MOST_ROWS:
                samples.append((names[path], found))
        if len(samples) + len(acceptance) == before:
            msg = f"{path}: has no times of 1 to {MOST_ROWS} rows, and nothing about drafted tokens"
            raise ConfigError(f"{msg}; for example, write it with llama-bench -p 1,2,3,4,5,6,8,12,16 -n 32 -o jsonl")
    return Imported(
        curves=curves_of(samples),
        acceptance=tuple(acceptance),
        unread=frozenset(unread),
        repeated=repeated,
    )


def _once(given: Iterable[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Return each file once, and a sentence for every repetition."""
    firsts: dict[Path, Path] = {}
    repeated = []
    for path in given:
        whole = path.resolve()
        if whole in firsts:
            repeated.append(f"{path} is the same file as {firsts[whole]}: it was read once.")
        firsts.setdefault(whole, path)
    return list(firsts.values()), tuple(repeated)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each file, with as many parent folders as make it unique."""
    parts = {path: path.resolve().parts for path in paths}
    names: dict[Path, str] = {}
    for depth in range(1, max(map(len, parts.values()), default=0) + 1):
        counts = Counter(own[-depth:] for own in parts.values())
        names = {path: "/".join(own[-depth:]) for path, own in parts.items() if counts[own[-depth:]] == 1} | names
    return names


def _page(path: Path) -> Page:
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_PARQUET)) == _PARQUET:
                how = 'pip install pyarrow; python -c "import sys, pyarrow.parquet as p, pyarrow.csv as c; '
                how += 'c.write_csv(p.read_table(sys.argv[1]), sys.argv[2])" TABLE.parquet TABLE.csv'
                raise ConfigError(f"{path}: a Parquet table, which needs pyarrow; make CSV of it: {how}")
    return Page.read(path)


def _reader(page: Page) -> Reader:
    for reader in READERS.values():
        if reader.looks_so(page):
            return reader
    if not page.text.strip():
        raise ConfigError(f"{page.path}: is empty")
    raise ConfigError(f"{page.path}: an unknown kind of file; known: {', '.join(READERS)}")
