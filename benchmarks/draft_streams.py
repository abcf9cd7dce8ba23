"""Tokens per step of a draft with streams, by kind of task, on the shipped prompts at temperature 0, and a step's cost.

    python benchmarks/draft_streams.py --drafter FOLDER                       figures to benchmarks/results
    python benchmarks/draft_streams.py --drafter FOLDER --card                and onto the drafter's card
    python benchmarks/draft_streams.py --drafter FOLDER --cost                only what a step costs, anew
    python benchmarks/draft_streams.py --page                                 writes the table of docs/training.md

Target and draft run in this process, round after round, each prompt once for every window length. A draft without
streams makes one token a step. Counts do not depend on time. Costs are ratios of steps that take turns (A B A B), on
one core: drafting is faster with streams if a step brings more tokens than it costs plain steps.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _common import (
    RESULTS,
    arguments,
    markdown_table,
    measured,
    quartiles,
    read_result,
    rewrite_page,
    with_section,
    write_result,
)

from calibrate.prompts import bundled_prompts, encode_prompts
from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.shipped import find_drafter
from runtime.drafters.window_drafter import Steps
from runtime.models.embedded import embedded_folder
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from runtime.target.target_model import TargetModel
from runtime.wire.measurement import Measurement
from training.judging.card import add_benchmark

RESULT = RESULTS / "draft-streams.json"
WINDOWS = (4, 5, 8)
CONTEXT, TURNS = 200, 200


class Count(NamedTuple):
    """What was drafted for one prompt: tokens, and the steps it took."""

    tokens: int
    steps: int


def main() -> None:
    """Measure every window length on every prompt."""
    options = _options()
    if options.page:
        rewrite_page(lambda page: with_table(page, read_result(RESULT)))
        return
    torch.set_num_threads(1)
    folder = find_drafter(options.drafter)
    decoder = load_decoder(embedded_folder(), dtype=torch.bfloat16)
    draft = load_draft(folder, decoder, dtype=torch.bfloat16)
    if draft.config.streams is None:
        raise SystemExit(f"{folder}: a draft without streams makes one token a step")
    target, drafter = TargetModel(decoder), Drafter(draft)
    cost = step_cost(drafter, draft.config.streams.num_streams)
    print(cost, flush=True)
    if options.cost:
        write_result(RESULT, read_result(RESULT) | {"step_cost": cost})
        return
    prompts = encode_prompts(bundled_prompts(), Tokenizer.from_folder(embedded_folder()))[:: options.every]
    figures = {}
    for num_tokens in WINDOWS:
        schedule = Schedule(
            method="speculative",
            target_lane="target",
            draft_lane="draft",
            num_speculative_tokens=num_tokens,
            draft_streams=draft.config.streams.num_streams,
            exit_features=bool(draft.config.exit_features),
        )
        tokens, steps = Counter[str](), Counter[str]()
        for prompt in prompts:
            count = decode(target, drafter, prompt.ids, schedule, options.max_new_tokens)
            for kind in ("all", prompt.category):
                tokens[kind] += count.tokens
                steps[kind] += count.steps
        figures[f"windows of {num_tokens}"] = {kind: round(tokens[kind] / steps[kind], 3) for kind in tokens}
        print(num_tokens, figures[f"windows of {num_tokens}"], flush=True)
    shared = {
        "drafter": Path(options.drafter).name,
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "measured": measured(embedded_folder(), folder),
    }
    write_result(RESULT, shared | {"tokens_per_draft_step": figures, "step_cost": cost})
    if options.card:
        flat = {f"{windows}, {kind}": value for windows, row in figures.items() for kind, value in row.items()}
        add_benchmark(folder, "tokens per draft step on the shipped prompts", flat)


def with_table(page: str, result: Mapping[str, Any]) -> str:
    """The page with tokens per step between its markers, and what a step costs below."""
    found, cost = result["tokens_per_draft_step"], result["step_cost"]
    tasks = list(next(iter(found.values())))
    rows = [[windows, *(f"{row[task]:.2f}" for task in tasks)] for windows, row in found.items()]
    table = markdown_table(["tokens per step", *tasks], rows)
    price = f"A step costs {cost['median']:.2f} plain ones (quartiles {cost['lower_quartile']:.2f} to "
    price += f"{cost['upper_quartile']:.2f}).\n"
    return with_section(page, "streams", f"{table}\n{price}")


def step_cost(drafter: Drafter, num_streams: int) -> dict[str, float]:
    """A step that guesses and verifies guesses over one of a single row: median and quartiles of the ratios."""
    plain = drafter.timed_step(Measurement(part="draft_step", rows=1, context=CONTEXT))
    verifying = drafter.timed_step(Measurement(part="draft_step", rows=1 + num_streams, context=CONTEXT))
    guessing = drafter.timed_step(Measurement(part="draft_streams", rows=num_streams, context=CONTEXT))
    ratios = []
    for index in range(TURNS + 10):
        plain_s, more_s = _seconds(plain), _seconds(verifying) + _seconds(guessing)
        if index >= 10:
            ratios.append(more_s / plain_s)
    return quartiles(ratios, digits=3)


def _seconds(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def decode(
    target: TargetModel, drafter: Drafter, prompt: tuple[int, ...], schedule: Schedule, max_new_tokens: int
) -> Count:
    """Speculative decoding of one prompt; what was drafted on the way."""
    layers = drafter.feature_layers if schedule.exit_features else ()
    length = len(prompt) + max_new_tokens + schedule.num_rows
    features = target.prefill(prompt, capacity=length, feature_layers=layers)
    drafter.prefill(prompt, schedule=schedule, capacity=length, features_TE=features)
    window, num_steps = finished(drafter.rollout())
    num_tokens, num_new = len(window.tokens), 0
    while True:
        verdict = target.verify(window)
        committed = (*window.accepted(verdict), verdict.next_token)
        num_new += len(committed)
        if num_new >= max_new_tokens or set(committed) & set(target.decoder.config.eos_token_ids):
            return Count(num_tokens, num_steps)
        window, more = finished(drafter.rollout(committed, verdict.features))
        num_tokens, num_steps = num_tokens + len(window.tokens), num_steps + more


def finished(steps: Steps) -> tuple[Window, int]:
    """A window, and how many steps it took."""
    num_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, num_steps
        num_steps += 1


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--drafter", help="name or folder of a draft with streams")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    parser.add_argument("--card", action="store_true", help="put the figures on the drafter's card")
    parser.add_argument("--cost", action="store_true", help="only measure what a step costs, on quiet cores")
    parser.add_argument("--page", action="store_true", help="measure nothing, write docs/training.md anew")
    options = parser.parse_args()
    if not options.page and options.drafter is None:
        parser.error("--drafter is needed to measure")
    return options


if __name__ == "__main__":
    main()
