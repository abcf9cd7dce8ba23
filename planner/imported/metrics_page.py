"""Pages of metrics, as Prometheus reads them, of vLLM, llama.cpp, SGLang and TensorRT-LLM: what was accepted so far.

Counters are since the server started: a page of a server that ran without drafting, or of several drafters, tells of
all of it together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from planner.imported.accepted import EngineAcceptance
from planner.imported.engine_page import Page, PageRow

_LINE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
_POSITION: Final = re.compile(r'(?:^|,)\s*position="(\d{1,4})"')
_COUNTING: Final = {"vllm": "vllm:spec_decode_", "llama.cpp": "llamacpp:spec_decode_"}
_SGLANG: Final = "sglang:spec_"
_TRTLLM: Final = "trtllm_spec_decode_"
_KNOWN: Final = (*_COUNTING.values(), _SGLANG, _TRTLLM)


def is_metrics(page: Page) -> bool:
    """Return whether a page is one of metrics of an engine that is known."""
    return any(line.startswith(("# HELP", "# TYPE", *_KNOWN)) for line in page.text.splitlines()[:2000])


def read_metrics(page: Page, window: int | None) -> Iterator[EngineAcceptance]:
    """Yield what each engine accepted; `window` is how many tokens were drafted, where the page does not tell."""
    values, places, line = _values(page)
    everything = PageRow(page.path, line, values)
    for engine, prefix in _COUNTING.items():
        if f"{prefix}num_drafts" in values:
            yield _counted(engine, prefix, everything, places[prefix])
    if f"{_SGLANG}accept_length" in values:
        mean = everything.number(f"{_SGLANG}accept_length", least=1)
        share = values.get(f"{_SGLANG}accept_rate")
        drafted = (mean - 1) / share if share and mean > 1 else None
        rounds = values.get(f"{_SGLANG}verify_calls")
        yield EngineAcceptance.of_mean(
            "sglang", page.path, mean, drafted=window or drafted, num_rounds=None if rounds is None else int(rounds)
        )
    if f"{_TRTLLM}acceptance_length" in values:
        mean = everything.number(f"{_TRTLLM}acceptance_length", least=1)
        accepted = everything.number(f"{_TRTLLM}num_accepted_tokens")
        rounds = accepted / (mean - 1) if mean > 1 else 0.0
        drafted = everything.number(f"{_TRTLLM}num_draft_tokens") / rounds if rounds else None
        yield EngineAcceptance.of_mean(
            "tensorrt-llm", page.path, mean, drafted=window or drafted, num_rounds=round(rounds) or None
        )


def _counted(engine: str, prefix: str, values: PageRow, places: dict[int, float]) -> EngineAcceptance:
    rounds = values.count(f"{prefix}num_drafts", least=1)
    if places:
        by_place = [places.get(place, 0.0) for place in range(max(places) + 1)]
        return EngineAcceptance.of_shares(engine, values, by_place, num_rounds=rounds, out_of=rounds)
    drafted = values.number(f"{prefix}num_draft_tokens") / rounds
    mean = 1 + values.number(f"{prefix}num_accepted_tokens") / rounds
    return EngineAcceptance.of_mean(engine, values.path, mean, drafted=drafted, num_rounds=rounds)


def _values(page: Page) -> tuple[dict[str, float], dict[str, dict[int, float]], int]:
    """Return the metrics of speculation by name, those by place, and the line of the first one.

    Counters of several workers are added up; of means the first one is taken.
    """
    values = dict[str, float]()
    places = defaultdict[str, dict[int, float]](dict)
    first = 1
    for number, line in enumerate(page.text.splitlines(), 1):
        if not line.startswith(_KNOWN):
            continue
        found = _LINE.match(line.strip())
        if found is None:
            raise PageRow(page.path, number, {"line": line}).wrong("line", "a metric's name, its labels and a number")
        name = found["name"].removesuffix("_total")
        value = PageRow(page.path, number, {name: found["value"]}).number(name)
        first = first if values else number
        position = _POSITION.search(found["labels"] or "")
        prefix = next(known for known in _KNOWN if name.startswith(known))
        if position is not None and name.endswith("_per_pos"):
            place = int(position[1])
            places[prefix][place] = places[prefix].get(place, 0.0) + value
        elif name.endswith(("_length", "_rate")):
            values.setdefault(name, value)
        elif not name.endswith("_created"):
            values[name] = values.get(name, 0.0) + value
    return values, places, first
