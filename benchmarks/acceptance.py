"""Acceptance of the shipped drafters at temperature 0: what their windows and trees get accepted, by kind of task.

    python benchmarks/acceptance.py                                   the shipped prompts, every drafter
    python benchmarks/acceptance.py --prompts question.jsonl          Spec-Bench's questions, first turns

The models are recorded at every position of the target's text once, and all settings are replayed from there; a
replay has the rounds of real lanes (benchmarks/exactness.py). Writes
benchmarks/results/acceptance-NAME.json, where NAME is `shipped` or the file's stem, and puts the figures on
the drafters' cards with --card. Acceptance does not depend on time: it may run next to other work.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from _common import (
    EMBEDDED,
    RESULTS,
    by_category,
    chosen_prompts,
    markdown_table,
    measured,
    prompt_arguments,
    read_result,
    show,
    write_result,
)

from calibrate.prompts import Prompt
from calibrate.recording.reach import Reach
from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.host import describe_host, lanes_of
from mirrorsd.measure_pair import record
from mirrorsd.model_pair import ModelPair, NamedFolder, find_pair
from runtime.drafters.registry import KINDS, SHIPPED_FOLDER, kind_of
from sim.acceptance.replay import Replay
from training.judging.card import CARD_FILE, AcceptanceByTask, TaskAcceptance, add_acceptance

WINDOWS = (4, 5)
DYNAMIC_TREE: dict[str, Any] = {"num_speculative_tokens": 6, "tree_top_k": 10, "tree_size": 60}
STATIC_TREE_SIZE = 63


def main() -> None:
    """Measure every setting on every prompt and write the result file."""
    parser = prompt_arguments(__doc__, card=(False, "put the figures on the drafters' cards"))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options = parser.parse_args()
    name, prompts = chosen_prompts(options)
    pair = find_pair(EMBEDDED, dtype=options.dtype)
    drafters = [one for one in (pair.drafter, *pair.heads) if one is not None]
    result: dict[str, Any] = {
        "prompts": name,
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "dtype": options.dtype,
        "target": pair.target,
        "platform": describe_host(),
        "measured": measured(pair.target_folder, *(drafter.folder for drafter in drafters)),
        "drafters": {},
    }
    replay = _replay(pair, prompts, options)
    for drafter in drafters:
        settings = result["drafters"][drafter.name] = {}
        for label, schedule in _schedules(drafter, lanes_of("cpu")[0].name):
            settings[label] = _figures(_rounds(replay, schedule, prompts))
            print(f"{drafter.name}, {label}: {settings[label]['mean_acceptance_length']:.3f}", flush=True)
        if options.card and (drafter.folder / CARD_FILE).is_file():
            add_acceptance(drafter.folder, name, _for_card(settings))
    write_result(RESULTS / f"acceptance-{name}.json", result)


class Rounds(NamedTuple):
    """One prompt's rounds: its kind of task, and for each round tokens accepted and tokens committed."""

    category: str
    accepted: list[int]
    committed: list[int]


def _replay(pair: ModelPair, prompts: Sequence[Prompt], options: argparse.Namespace) -> Replay:
    """Record the pair on the prompts; the record is kept no longer than needed."""
    with tempfile.TemporaryDirectory() as folder:
        depth, top_k = DYNAMIC_TREE["num_speculative_tokens"], DYNAMIC_TREE["tree_top_k"]
        reach = Reach(max_new_tokens=options.max_new_tokens, max_window=max(WINDOWS), trees=((depth, top_k),))
        path = Path(folder) / "record.npz"
        return Replay(record(pair, prompts, path, reach=reach, num_threads=options.threads, progress=show))


def _rounds(replay: Replay, schedule: Schedule, prompts: Sequence[Prompt]) -> list[Rounds]:
    walk = replay.walk(schedule, None)
    # what a last round accepts beyond the text's end is not committed
    accepted = np.minimum(walk.num_accepted, walk.num_committed)
    return [
        Rounds(
            prompt.category, accepted[walk.prompt == place].tolist(), walk.num_committed[walk.prompt == place].tolist()
        )
        for place, prompt in enumerate(prompts)
    ]


def _schedules(drafter: NamedFolder, lane: str) -> Iterator[tuple[str, Schedule]]:
    """Every setting of a drafter, by its label."""
    for label, fields in _settings(drafter.folder):
        place = {"target_lane": lane} | ({} if fields["method"] == "speculative_streaming" else {"draft_lane": lane})
        yield label, Schedule(drafter=drafter.name, **place, **fields)


def _settings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Labels, and fields of a schedule, for the drafter in a folder."""
    config = json.loads((folder / "config.json").read_bytes())
    method = KINDS[kind_of(folder)].method or "speculative"
    if METHODS[method].window == "chain":
        for num_tokens in WINDOWS:
            for with_features in (False, True) if config.get("exit_features") else (False,):
                label = f"{num_tokens} drafted tokens, {'with' if with_features else 'without'} exit features"
                chain = {"method": method, "num_speculative_tokens": num_tokens, "exit_features": with_features}
                yield label, chain
    elif "paths" in config:
        depth, size = max(map(len, config["paths"])), min(STATIC_TREE_SIZE, len(config["paths"]))
        tree = {"method": method, "num_speculative_tokens": depth, "tree_size": size}
        yield f"tree of {size} nodes, {depth} deep", tree
    else:
        size, depth = DYNAMIC_TREE["tree_size"], DYNAMIC_TREE["num_speculative_tokens"]
        yield f"tree of {size} nodes, {depth} deep", {"method": method} | DYNAMIC_TREE


def _figures(prompts: Sequence[Rounds]) -> dict[str, Any]:
    return {
        **_acceptance(prompts),
        "mean_acceptance_length_per_request": fmean(_mean_length([prompt]) for prompt in prompts),
        "num_rounds": sum(len(prompt.accepted) for prompt in prompts),
        "by_category": by_category(prompts, _acceptance),
    }


def _acceptance(prompts: Sequence[Rounds]) -> dict[str, Any]:
    accepted = [count for prompt in prompts for count in prompt.accepted]
    reached = [sum(count >= place for count in accepted) for place in range(max(accepted, default=0) + 1)]
    return {
        "mean_acceptance_length": _mean_length(prompts),
        "conditional_acceptance_rate": [now / before for before, now in pairwise(reached)],
    }


def _for_card(settings: dict[str, Any]) -> AcceptanceByTask:
    """The figures that a card has, rounded as a card has them."""

    def rounded(figures: dict[str, Any]) -> TaskAcceptance:
        return TaskAcceptance(
            mean_acceptance_length=round(figures["mean_acceptance_length"], 3),
            conditional_acceptance_rate=tuple(round(rate, 3) for rate in figures["conditional_acceptance_rate"]),
        )

    return {
        label: {task: rounded(figures) for task, figures in {"all": found, **found["by_category"]}.items()}
        for label, found in settings.items()
    }


def _mean_length(prompts: Sequence[Rounds]) -> float:
    return sum(sum(one.committed) for one in prompts) / sum(len(one.committed) for one in prompts)


def sections() -> dict[str, str]:
    """Return the table of docs/training.md, with a row for every setting of every shipped drafter, by marker."""
    results = {
        path.stem.removeprefix("acceptance-"): read_result(path) for path in sorted(RESULTS.glob("acceptance-*.json"))
    }
    header = ["drafter", "MB", "answer tokens", "minutes", "setting", *results]
    rows = [
        [
            *_trained(config.parent),
            setting,
            *(_mean(result, config.parent.name, setting) for result in results.values()),
        ]
        for config in sorted(SHIPPED_FOLDER.glob("*/config.json"))
        for setting in _settings_of(results, config.parent.name)
    ]
    counts = [f"`{name}`: {result['num_prompts']} prompts" for name, result in results.items()]
    limits = {result["max_new_tokens"] for result in results.values()}
    limit = ", ".join(map(str, sorted(limits)))
    told = f"{', '.join(counts)}; up to {limit} new tokens each."
    return {"drafters": f"{told}\n\n{markdown_table(header, rows)}"}


def _trained(folder: Path) -> list[str]:
    """Name, size and training of a drafter; what was not trained has no card."""
    if not (folder / CARD_FILE).is_file():
        return [folder.name, "-", "-", "-"]
    card = read_result(folder / CARD_FILE)
    megabytes, tokens = card["num_bytes"] / 1e6, card["num_training_tokens"]
    return [card["name"], f"{megabytes:.1f}", f"{tokens:,}", f"{card['training_minutes']:.0f}"]


def _settings_of(results: Mapping[str, Mapping[str, Any]], drafter: str) -> Iterator[str]:
    settings = [setting for result in results.values() for setting in result["drafters"].get(drafter, {})]
    yield from dict.fromkeys(settings)


def _mean(result: Mapping[str, Any], drafter: str, setting: str) -> str:
    figures = result["drafters"].get(drafter, {}).get(setting)
    return "-" if figures is None else f"{figures['mean_acceptance_length']:.2f}"


if __name__ == "__main__":
    main()
