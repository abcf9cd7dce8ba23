"""What streams inside a draft bring, by how they were trained: right guesses, tokens per step, and whether that pays.

    python benchmarks/draft_streams.py --drafter FOLDER                          the shipped prompts
    python benchmarks/draft_streams.py --drafter FOLDER --prompts question.jsonl --every 4     Spec-Bench's questions
    python benchmarks/draft_streams.py --drafter FOLDER --cost                   what a step costs, on a quiet core

Target and draft are recorded at every position of the target's greedy text, and rounds are replayed from there, with
exit features where the draft reads them (`mirrorsd record`; counts do not depend on time). Costs are ratios of steps
that take turns (A B A B): streams make drafting faster if a step brings more tokens than it costs plain steps. Figures
of other drafters and prompts are kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _common import (
    EMBEDDED,
    RESULTS,
    chosen_prompts,
    markdown_table,
    measured,
    prompt_arguments,
    quartiles,
    read_result,
    show,
    write_result,
)

from calibrate.recording.reach import Reach
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from mirrorsd.measure_pair import record
from mirrorsd.model_pair import find_pair
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.registry import find_drafter
from runtime.models.decoder import load_decoder
from runtime.models.default_model import embedded_folder
from runtime.wire.measurement import Measurement
from sim.acceptance.joined_record import Guessing
from sim.acceptance.replay import Replay
from sim.acceptance.walk import Walk
from training.judging.card import Card, read_card

RESULT = RESULTS / "draft-streams.json"
WINDOWS = (4, 5, 8)
CONTEXT, TURNS = 200, 200


def main() -> None:
    """Measure one drafter on one set of prompts, or only what its steps cost."""
    options = prompt_arguments(
        __doc__,
        drafter=([str], "name or folder of a draft with streams"),
        records=(Path("out/records"), "where records are kept"),
        cost=(False, "only measure what a step costs, on quiet cores"),
    ).parse_args()
    torch.set_num_threads(1)
    folder = find_drafter(options.drafter)
    drafter = Path(options.drafter).name
    if options.cost:
        write_result(RESULT, read_result(RESULT) | {"step_cost": measured_cost(folder) | {"drafter": drafter}})
        return
    name, prompts = chosen_prompts(options)
    path = options.records / f"{drafter}-{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    reach = Reach(max_new_tokens=options.max_new_tokens, max_window=max(WINDOWS))
    pair = find_pair(EMBEDDED, drafter=folder, heads=())
    found = record(pair, prompts, path, reach=reach, num_threads=1, progress=show)
    result = read_result(RESULT)
    drafters = result.get("drafters", {})
    own = drafters.get(drafter, {}) | trained(read_card(folder)) | {name: figures(found)}
    weights = {file.replace(f"{folder.name}/", f"{drafter}/"): digest for file, digest in measured(folder).items()}
    weights = result.get("measured", {}) | measured(embedded_folder()) | weights
    kept = {"step_cost": result["step_cost"], "measured": weights, "max_new_tokens": options.max_new_tokens}
    write_result(RESULT, kept | {"drafters": drafters | {drafter: own}})


def trained(card: Card) -> dict[str, Any]:
    """How the streams on a card were trained, and for how long (`_COUNTED`)."""
    if card.kind == "streaming_draft":
        return {"trained": "with the draft", "num_training_tokens": card.num_training_tokens}
    count = card.benchmarks["draft_streams, held out"]["training_tokens"]
    return {"trained": "after the draft", "num_training_tokens": int(count)}


def figures(found: AcceptanceRecord) -> dict[str, Any]:
    """What becomes of drafted tokens and of guesses, by window: in all, and of tokens per step by kind of task."""
    replay = Replay(found)
    lengths, per_step = {}, {}
    for window in WINDOWS:
        schedule = _schedule(found, window)
        walk, guessing = replay.walk(schedule, None), replay.guessing(schedule)
        assert guessing is not None, "a schedule with streams"
        label = f"windows of {window}"
        lengths[label] = round(float(walk.num_committed.sum() / len(walk.prompt)), 3)
        per_step[label] = tokens_per_step(found, walk, guessing)
    return {
        "num_prompts": len(found.prompts),
        "mean_acceptance_length": lengths,
        "right_guesses": right_guesses(found),
        "tokens_per_draft_step": per_step,
    }


def tokens_per_step(found: AcceptanceRecord, walk: Walk, guessing: Guessing) -> dict[str, float]:
    """Drafted tokens over the steps that they took, in all rounds, by kind of task."""
    num_steps = 1 + (guessing.rows_by_step(walk.at) > 0).sum(axis=0)
    tokens, steps = Counter[str](), Counter[str]()
    for prompt, drafted, taken in zip(walk.prompt.tolist(), walk.num_drafted.tolist(), num_steps.tolist(), strict=True):
        for kind in ("all", found.prompts[prompt].category):
            tokens[kind] += drafted
            steps[kind] += taken
    return {kind: round(tokens[kind] / steps[kind], 3) for kind in tokens}


def right_guesses(found: AcceptanceRecord) -> list[float]:
    """The share of each stream's guesses that are right, given that those before it are, after every drafted token.

    Only where the recorded window has room for all guesses.
    """
    guessing = Replay(found).guessing(_schedule(found, found.max_window))
    assert guessing is not None, "a schedule with streams"
    hits = guessing.hits_TW[:, : found.max_window - found.num_streams]
    reached = [int((hits >= count).sum()) for count in range(found.num_streams + 1)]
    return [round(now / max(before, 1), 3) for before, now in pairwise(reached)]


def _schedule(found: AcceptanceRecord, window: int) -> Schedule:
    return Schedule(
        method="speculative",
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=window,
        draft_streams=found.num_streams,
        exit_features=bool(found.feature_layers),
    )


def sections() -> dict[str, str]:
    """Return the tables of docs/training.md, by marker."""
    result = read_result(RESULT)
    found = result["drafters"].values()
    prompts = dict.fromkeys(name for one in found for name, value in one.items() if _is_prompts(value))
    parts = [_tokens(result), *(_brought(result, name) for name in prompts), _price(result)]
    return {"streams": "\n".join(parts)}


def _is_prompts(value: object) -> bool:
    return isinstance(value, dict) and "right_guesses" in value


_COUNTED = {
    "with the draft": "answer tokens, of which streams see at most `rows_per_conversation` of each conversation",
    "after the draft": "answer positions with streams",
}
"""What `num_training_tokens` of a card counts."""


def _tokens(result: Mapping[str, Any]) -> str:
    said = (
        f"{one['trained']} {one['num_training_tokens']:,} {_COUNTED[one['trained']]}"
        for one in result["drafters"].values()
    )
    return f"Trained on: {'; '.join(said)}.\n"


def _brought(result: Mapping[str, Any], prompts: str) -> str:
    """What became of guesses on one set of prompts."""
    own = {one["trained"]: one[prompts] for one in result["drafters"].values() if prompts in one}
    first, rows = next(iter(own.values())), []
    for trained, one in own.items():
        rights = " ".join(f"{share:.2f}" for share in one["right_guesses"])
        for windows, by_task in one["tokens_per_draft_step"].items():
            figures = (one["mean_acceptance_length"][windows], *by_task.values())
            shown = [f"{figure:.2f}" for figure in figures]
            rows.append([trained, windows, rights, *shown])
    tasks = list(next(iter(first["tokens_per_draft_step"].values())))
    header = ["streams trained", "", "right guesses", "tokens per round", "tokens per step", *tasks[1:]]
    count = f"`{prompts}`, {first['num_prompts']} prompts, up to {result['max_new_tokens']} new tokens each:"
    return f"{count}\n\n{markdown_table(header, rows)}"


def _price(result: Mapping[str, Any]) -> str:
    cost = result["step_cost"]
    quartiles = f"{cost['lower_quartile']:.2f} to {cost['upper_quartile']:.2f}"
    price = f"{cost['median']:.2f} plain ones (quartiles {quartiles})"
    return f"A step that verifies guesses and makes new ones, of streams of these sizes, costs {price} on one core.\n"


def measured_cost(folder: Path) -> dict[str, float]:
    """`step_cost` of the draft in a folder."""
    decoder = load_decoder(embedded_folder(), dtype=torch.bfloat16)
    draft = load_draft(folder, decoder, dtype=torch.bfloat16)
    if draft.config.streams is None:
        raise SystemExit(f"{folder}: a draft without streams makes one token a step")
    return step_cost(Drafter(draft), draft.config.streams.num_streams)


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


if __name__ == "__main__":
    main()
