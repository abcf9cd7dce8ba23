"""Whether sampled texts have the target's own distribution, for every method and rule: exact, and with known power.

    python benchmarks/sampled_texts.py                        20,000 texts of every schedule

A target of four tokens has 64 texts of three tokens, whose probabilities are computed in float64 without a cache and
without a rule. Every schedule samples such texts on lanes that run in this process; their counts are tested with
Pearson's chi-square. Three tokens are enough for windows of two to be accepted whole or in part or not at all, for
bonus tokens, and for another round after a hit and after a miss. Under the rule match texts have to be those of plain
sampling too, one by one. Mistakes that are made often are made here on purpose: each has to fail. The rule typical is
lossy, and has to fail too. Acceptance does not depend on time: it may run next to other work. Writes
benchmarks/results/sampled-texts.json after every schedule; goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import atexit
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch
from _common import RESULTS, arguments, measured, read_result, write_result

from decoding.methods import METHODS
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.host import describe_host
from runtime.engine import Engine
from tests.benchmarks.broken_sampling import MISTAKES
from tests.benchmarks.goodness_of_fit import Fit, critical_value, fit, merged, power
from tests.benchmarks.in_process_lanes import in_process_engine
from tests.benchmarks.tiny_pair import NUM_TOKENS, PROMPT, TEMPERATURE, VOCAB_SIZE, Exact, Text, save_pair

RESULT = RESULTS / "sampled-texts.json"
LEVEL: Final = 0.01
"""Probability that any of the schedules fails although all are right."""
TOTAL_VARIATION: Final = 0.03
TARGET, DRAFT, HEADS, OPEN = "openvino:CPU@0", "openvino:CPU@1", "cpu1", "cpu0"
"""Lanes: streams look at keys, which only torch shows, and heads are torch's everywhere."""
_LANES: Final = ("target_lane", "draft_lane")
_SPLIT: Final = {"target_lane": TARGET, "draft_lane": DRAFT, "num_speculative_tokens": 2, "drafter": "draft"}
_MIRROR: Final = _SPLIT | {"method": "mirror"}
_EXIT: Final = {"root_source": "exit", "exit_layer": 1, "exit_top_k": 2}
_OWN_STREAMS: Final = {
    "target_lane": OPEN,
    "draft_lane": HEADS,
    "num_speculative_tokens": 3,
    "draft_streams": 1,
    "drafter": "draft with streams",
}
_TREE: Final = {"target_lane": TARGET, "draft_lane": HEADS, "num_speculative_tokens": 2, "tree_size": 4}
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "autoregressive": {"method": "autoregressive", "target_lane": TARGET},
    "speculative": _SPLIT | {"method": "speculative"},
    "speculative, pooled": _SPLIT | {"method": "speculative", "draft_lane": TARGET},
    "speculative with features": _SPLIT
    | {"method": "speculative", "drafter": "draft with features", "exit_features": True},
    "speculative with streams of the draft": _OWN_STREAMS | {"method": "speculative"},
    "mirror from the exit": _MIRROR | _EXIT,
    "mirror from the draft": _MIRROR | {"root_source": "draft", "draft_top_k": 1},
    "hybrid mirror": _MIRROR | _EXIT | {"root_source": "hybrid", "draft_top_k": 1},
    "mirror with features": _MIRROR | _EXIT | {"drafter": "draft with features", "exit_features": True},
    "mirror with streams of the draft": _OWN_STREAMS | {"method": "mirror", "root_source": "draft", "draft_top_k": 1},
    "prompt_lookup": _SPLIT | {"method": "prompt_lookup", "draft_lane": HEADS, "drafter": "prompt_lookup"},
    "medusa": _TREE | {"method": "medusa", "drafter": "medusa"},
    "hydra": _TREE | {"method": "hydra", "drafter": "hydra"},
    "eagle2": _TREE | {"method": "eagle2", "drafter": "eagle2", "tree_top_k": 2},
    "eagle3": _TREE | {"method": "eagle3", "drafter": "eagle3", "tree_top_k": 2},
    "speculative_streaming": _TREE
    | {"method": "speculative_streaming", "drafter": "speculative_streaming", "target_lane": OPEN, "draft_lane": None},
}
SCHEDULES: Final = {
    f"{name}, {rule}": Schedule(**fields, verification=rule)
    for name, fields in _FIELDS.items()
    for rule in METHODS[fields["method"]].rules
    if rule != "greedy" and (rule != "match" or name in (*METHODS, "hybrid mirror"))
}
"""Under match one of every method: the draft has no draws there, and what it drafts makes no difference."""
LOSSY: Final = {name: schedule for name, schedule in SCHEDULES.items() if schedule.verification == "typical"}
EXACT: Final = {name: schedule for name, schedule in SCHEDULES.items() if name not in LOSSY}


class Sampler:
    """Samples texts of the tiny pair by any schedule; without compiled lanes torch computes everything."""

    def __init__(self, engine: Engine, root: Path, exact: Exact, *, is_compiled: bool) -> None:
        self.engine, self._root, self.exact = engine, root, exact
        self._lanes = {} if is_compiled else {TARGET: OPEN, DRAFT: HEADS}

    def texts(
        self, schedule: Schedule, count: int, rounds: Counter[str] | None = None, *, num_tokens: int = NUM_TOKENS
    ) -> list[Text]:
        """The texts of the seeds 0, 1, ...; what their rounds were like is counted in `rounds`."""
        drafter = schedule.drafter and str(self._root / schedule.drafter)
        places = {lane: self._lanes.get(name, name) for lane in _LANES if (name := getattr(schedule, lane))}
        own, found = schedule.model_copy(update=places | {"drafter": drafter}), []
        for seed in range(count):
            made = self.engine.generate(
                own, PROMPT, max_new_tokens=num_tokens, temperature=TEMPERATURE, seed=seed, eos_token_ids=()
            )
            found.append(made.tokens)
            assert not made.trace.events, made.trace.events
            if rounds is not None:
                rounds.update(_kinds(made.trace))
        return found

    def fit(self, texts: list[Text]) -> Fit:
        """The test of their counts."""
        return fit(Counter(texts), self.exact.of_texts)


@contextmanager
def tiny_sampler(*, is_compiled: bool = True) -> Iterator[Sampler]:
    """A sampler whose models are made anew."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        target = save_pair(root)
        lanes = (TARGET, DRAFT, OPEN, HEADS)
        with in_process_engine(root / "target", lanes=lanes, exits=root / "exits") as engine:
            yield Sampler(engine, root, Exact(target), is_compiled=is_compiled)


def main() -> None:
    """Sample, test, and write the result file after every schedule."""
    options = arguments(
        __doc__,
        out=RESULT,
        texts=(20_000, "of every schedule"),
        processes=(2, "that sample at the same time"),
        broken_texts=(6_000, "of every mistake and every lossy rule"),
    ).parse_args()
    with tiny_sampler() as sampler:
        content = _head(options, sampler)
    if options.out.exists() and _is_of_the_same(before := read_result(options.out), content):
        content = before
    jobs = [("have_to_fail", name, options.broken_texts) for name in (*MISTAKES, *LOSSY)]
    jobs += [("schedules", name, options.texts) for name in EXACT]
    # a fork would share the threads of OpenVINO
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        waiting = {
            pool.submit(_tested, name, count): (part, name) for part, name, count in jobs if name not in content[part]
        }
        for done in as_completed(waiting):
            part, name = waiting[done]
            content[part][name] = done.result()
            print(f"{name}: {done.result()}", flush=True)
            write_result(options.out, content)
    wrong = [name for name, one in content["schedules"].items() if not one["passes"]]
    wrong += [name for name, one in content["have_to_fail"].items() if one["passes"]]
    print("not as it should be:" if wrong else "all is as it should be", *wrong, sep="\n")


def _tested(name: str, count: int) -> dict[str, Any]:
    """The result of a schedule or of a mistake, by its name; every process has a sampler of its own."""
    sampler = _own_sampler()
    if name in MISTAKES:
        with MISTAKES[name].made():
            return _entry(sampler.fit(sampler.texts(SCHEDULES[MISTAKES[name].schedule], count)))
    schedule, rounds = SCHEDULES[name], Counter[str]()
    texts = sampler.texts(schedule, count, rounds)
    entry = _entry(sampler.fit(texts)) | {"rounds": dict(sorted(rounds.items()))}
    if schedule.verification == "match":
        entry["texts_of_plain_sampling"] = sum(
            text == sampler.exact.plain_text(seed) for seed, text in enumerate(texts)
        )
    return entry


@cache
def _own_sampler() -> Sampler:
    torch.set_num_threads(1)
    own = ExitStack()
    atexit.register(own.close)
    return own.enter_context(tiny_sampler())


def _entry(found: Fit) -> dict[str, Any]:
    return found._asdict() | {"passes": found.p_value >= level_of_each()}


def level_of_each() -> float:
    """Of the test of one schedule, so that all together keep `LEVEL`."""
    return LEVEL / len(EXACT)


def _head(options: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    degrees = len(merged(sampler.exact.of_texts, options.texts)) - 1
    return {
        "platform": describe_host(),
        "measured": measured(),
        "texts_of_each": options.texts,
        "texts_of_each_that_has_to_fail": options.broken_texts,
        "vocab_size": VOCAB_SIZE,
        "num_tokens": NUM_TOKENS,
        "temperature": TEMPERATURE,
        "level_of_all": LEVEL,
        "level_of_each": level_of_each(),
        "degrees_of_freedom": degrees,
        "critical_value": critical_value(degrees, level_of_each()),
        "power": {
            f"{one:g}": power(options.texts, degrees, level_of_each(), one)
            for one in (0.02, 0.025, TOTAL_VARIATION, 0.04)
        },
        "schedules": {},
        "have_to_fail": {},
    }


def _is_of_the_same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return all(before.get(name) == now[name] for name in ("texts_of_each", "temperature", "level_of_each"))


def _kinds(trace: Trace) -> Iterator[str]:
    """What every round was like: how much of its window was accepted, and what it followed."""
    before = None
    for one in trace.rounds:
        share = "no window" if not one.num_drafted else f"{one.num_accepted} accepted"
        yield share if before is None else f"{share} after a {'hit' if before else 'miss'}"
        before = one.hit


if __name__ == "__main__":
    main()
