"""Reads acceptance from Prometheus metrics of vLLM, llama.cpp, SGLang and TensorRT-LLM.

Counters run since the server started, over all of its requests and drafters.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from typing import Final

from planner.imported.engine_acceptance import TOLERANCE, EngineAcceptance, require_total
from planner.imported.engine_page import Page, PageRow, Told

_LINE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
_POSITION: Final = re.compile(r'(?:^|,)\s*position="(\d{1,4})"')
_RANK: Final = re.compile(r'(?:^|,)\s*dp_rank="(\d+)"')
_OF_ONE_GROUP: Final = re.compile(r'(?:^|,)\s*(?:tp|pp|moe_ep)_rank="\d+"')
"""Labels that distinguish workers of one group, which compute a pass together: each worker counts the same pass."""
_COUNTING: Final = {"vllm": "vllm:spec_decode_", "llama.cpp": "llamacpp:spec_decode_"}
_SGLANG: Final = "sglang:spec_"
_TRTLLM: Final = "trtllm_spec_decode_"
_KNOWN: Final = (*_COUNTING.values(), _SGLANG, _TRTLLM)


def is_metrics(page: Page) -> bool:
    """Return whether a page holds metrics of a known engine."""
    return any(line.startswith(("# HELP", "# TYPE", *_KNOWN)) for line in page.text.splitlines()[:2000])


def read_metrics(page: Page, told: Told) -> Iterator[EngineAcceptance]:
    """Yield the acceptance of each engine; where the page does not say how many tokens were drafted, `told` does."""
    values, places, lines = _values(page)
    everything = PageRow(page.path, min(lines.values(), default=1), values)
    for engine, prefix in _COUNTING.items():
        if f"{prefix}num_drafts" in values:
            of_places = places[prefix]
            if of_places:
                field = f"{prefix}num_accepted_tokens"
                total = PageRow(page.path, lines.get(field, everything.line), values)
                by_place = sum(of_places.values())
                require_total(total, field, by_place, f"{field}_per_pos", off_by=TOLERANCE * by_place)
            yield _counted(engine, prefix, everything, of_places)
    if f"{_SGLANG}accept_length" in values:
        mean = everything.number(f"{_SGLANG}accept_length", least=1)
        # accept_rate is not used: older servers count the target's own token among both accepted and drafted ones.
        drafted = told.window or values.get(f"{_SGLANG}num_steps")
        rounds = values.get(f"{_SGLANG}verify_calls")
        yield EngineAcceptance.of_mean("sglang", page.path, mean, drafted=drafted, num_rounds=rounds)
    if f"{_TRTLLM}acceptance_length" in values:
        mean = everything.number(f"{_TRTLLM}acceptance_length", least=1)
        accepted = everything.number(f"{_TRTLLM}num_accepted_tokens")
        rounds = accepted / (mean - 1) if mean > 1 else 0.0
        drafted = told.window or (everything.number(f"{_TRTLLM}num_draft_tokens") / rounds if rounds else None)
        yield EngineAcceptance.of_mean("tensorrt-llm", page.path, mean, drafted=drafted, num_rounds=rounds)


def _counted(engine: str, prefix: str, values: PageRow, places: dict[int, float]) -> EngineAcceptance:
    rounds = values.count(f"{prefix}num_drafts", least=1)
    accepted, drafted = (values.number(f"{prefix}num_{what}_tokens") for what in ("accepted", "draft"))
    by_place = [places.get(place, 0.0) for place in range(max(places, default=-1) + 1)]
    return EngineAcceptance.of_places(engine, values, by_place, (rounds, accepted, drafted))


def _values(page: Page) -> tuple[dict[str, float], dict[str, dict[int, float]], dict[str, int]]:
    """Return the metrics of speculation by name, those by prefix and position, and the first line of each name.

    Counters of several workers are added, means are weighted by verifications, and of settings the first is taken.
    """
    values = dict[str, float]()
    places = defaultdict[str, dict[int, float]](dict)
    lines = dict[str, int]()
    by_rank = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for number, name, labels, value in _numbers(page):
        lines.setdefault(name, number)
        position = _POSITION.search(labels)
        prefix = next(known for known in _KNOWN if name.startswith(known))
        if position is not None and name.endswith("_per_pos"):
            place = int(position[1])
            places[prefix][place] = places[prefix].get(place, 0.0) + value
            continue
        rank = _RANK.search(labels)
        by_rank[name][rank[1] if rank else ""].append(value)
        if name.endswith(("_rate", "_steps")):
            values.setdefault(name, value)
        elif not name.endswith(("_length", "_created")):
            values[name] = values.get(name, 0.0) + value
    calls = {rank: sum(counted) for rank, counted in by_rank[f"{_SGLANG}verify_calls"].items()}
    for name, means in by_rank.items():
        if name.endswith("_length"):
            values[name] = _mean({rank: fmean(own) for rank, own in means.items()}, calls)
    return values, places, lines


def _numbers(page: Page) -> Iterator[tuple[int, str, str, float]]:
    """Yield (line, name, labels, value) of each metric of speculation, for one worker of each group."""
    first = dict[tuple[str, str], str]()
    for number, line in enumerate(page.text.splitlines(), 1):
        if not line.startswith(_KNOWN):
            continue
        found = _LINE.match(line.strip())
        if found is None:
            raise PageRow(page.path, number, {"line": line}).wrong("line", "a metric's name, its labels and a number")
        name, labels = found["name"].removesuffix("_total"), found["labels"] or ""
        value = PageRow(page.path, number, {name: found["value"]}).number(name)
        if first.setdefault((name, _OF_ONE_GROUP.sub("", labels)), labels) == labels:
            yield number, name, labels, value


def _mean(lengths: dict[str, float], calls: dict[str, float]) -> float:
    """Return the mean over ranks, weighted by `calls`, their verifications.

    Without counts of verifications, ranks that verified at all count alike: their length is at least 1.
    """
    weights = {rank: calls.get(rank, 0.0) for rank in lengths}
    if not any(weights.values()):
        weights = {rank: float(length >= 1) for rank, length in lengths.items()}
    return fmean(lengths.values(), weights.values()) if any(weights.values()) else 0.0
