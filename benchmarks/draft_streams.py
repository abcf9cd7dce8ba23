"""Tokens per step of a draft with streams, by kind of task, on the shipped prompts at temperature 0.

    python benchmarks/draft_streams.py --drafter FOLDER                       figures to benchmarks/results
    python benchmarks/draft_streams.py --drafter FOLDER --card                and onto the drafter's card

Target and draft run in this process, round after round, each prompt once for every window length. A draft without
streams makes one token a step. Counts do not depend on time: this may run beside other work.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch

from calibrate.prompts import bundled_prompts, encode_prompts
from decoding.messages import Window
from decoding.schedule import Schedule
from decoding.yaml_file import write_atomically
from runtime.drafter import Drafter
from runtime.drafter_folder import load_draft
from runtime.models.embedded import embedded_folder
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from runtime.shipped import find_drafter
from runtime.target import TargetModel
from runtime.window_drafter import Steps
from training.card import add_benchmark

RESULT = Path(__file__).parent / "results" / "draft-streams.json"
WINDOWS = (4, 5, 8)


class Count(NamedTuple):
    """What was drafted for one prompt: tokens, and the steps it took."""

    tokens: int
    steps: int


def main() -> None:
    """Measure every window length on every prompt."""
    options = _options()
    torch.set_num_threads(1)
    folder = find_drafter(options.drafter)
    decoder = load_decoder(embedded_folder(), dtype=torch.bfloat16)
    draft = load_draft(folder, decoder, dtype=torch.bfloat16)
    if draft.config.streams is None:
        raise SystemExit(f"{folder}: a draft without streams makes one token a step")
    target, drafter = TargetModel(decoder), Drafter(draft)
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
    shared = {"drafter": folder.name, "num_prompts": len(prompts), "max_new_tokens": options.max_new_tokens}
    write_atomically(RESULT, json.dumps(shared | {"tokens_per_draft_step": figures}, indent=2) + "\n")
    if options.card:
        flat = {f"{windows}, {kind}": value for windows, row in figures.items() for kind, value in row.items()}
        add_benchmark(folder, "tokens per draft step on the shipped prompts", flat)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", required=True, help="name or folder of a draft with streams")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    parser.add_argument("--card", action="store_true", help="put the figures on the drafter's card")
    return parser.parse_args()


if __name__ == "__main__":
    main()
