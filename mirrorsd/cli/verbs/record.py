"""`mirrorsd record`: what would be accepted, at every position of every prompt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoding.errors import ConfigError
from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say_next, show, telling_what_was_saved
from mirrorsd.cli.other_programs import watching_others
from mirrorsd.cli.outputs import JsonOption, file_that_can_be_written, write_json
from mirrorsd.cli.progress_bar import task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from decoding.record import AcceptanceRecord

_EFFECT = "recording takes longer, but finds the same"
EXAMPLE = "mirrorsd record --out record.npz"


def record(
    out: Annotated[Path, typer.Option(help="Where the record goes (.npz).", callback=file_that_can_be_written)],
    prompts: options.PromptsOption = None,
    per_category: options.PerCategoryOption = None,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.DrafterOption = None,
    exits: options.ExitsOption = None,
    heads: options.HeadsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    device: options.DeviceOption = None,
    max_new_tokens: options.MaxNewTokensOption = options.MAX_NEW_TOKENS,
    max_window: options.MaxWindowOption = options.MAX_WINDOW,
    max_exit_top_k: Annotated[
        int, typer.Option(min=1, max=64, help="Most roots per row from an exit that can be replayed.")
    ] = 16,
    exit_layer: Annotated[
        list[int] | None,
        typer.Option(help="Record this exit; may be repeated. Without it, all with trained adapters."),
    ] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(help="Record dynamic trees of this depth and top-k, such as 5x8; may be repeated."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sample the target's texts at it; 0 is greedy.")] = 0.0,
    texts: Annotated[int, typer.Option(min=1, help="Sampled texts of every prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first sampled text; the others have the next ones.")] = 0,
    threads: Annotated[int | None, options.optional("Threads to compute with.", min=1)] = None,
    json: JsonOption = None,
) -> None:
    """Run target and drafter over prompts, so that any schedule can be replayed; resumes where it was stopped."""
    from mirrorsd.lane_choice import fitted_to, usual_device
    from mirrorsd.record_pair import Reach
    from mirrorsd.record_pair import record as make

    wanted = options.chosen_prompts(prompts, per_category)
    reach = Reach(
        max_new_tokens=max_new_tokens,
        max_window=max_window,
        max_exit_top_k=max_exit_top_k,
        exit_layers=None if exit_layer is None else tuple(exit_layer),
        trees=None if tree is None else tuple(map(_shape, tree)),
        temperature=temperature,
        num_texts=texts,
        seed=seed,
    )
    names = options.ModelNames(target, drafter, exits, heads, dtype)
    saved = [f"Finished prompts are kept next to {out}; the same command goes on from there."]
    with telling_what_was_saved(saved), task("Recording") as report, watching_others(effect=_EFFECT) as others:
        progress = others.on(report)
        whole = names.find(report)
        computing = device or usual_device(whole)
        pair, left_out = fitted_to(whole, [computing])
        made = make(pair, wanted, out, reach=reach, device=computing, num_threads=threads, progress=progress)
    result = _summary(made, out) | {"left_out": list(left_out)}
    if write_json(result, json):
        show(_in_words(result))
        profile = out.with_name("profile.yaml")
        if profile.is_file():
            say_next("search", "--profile", profile, "--record", out, "--out", out.with_name("best.yaml"))
        else:
            given = () if device is None else ("--device", device)
            reach_words = options.reach_words(prompts, max_new_tokens, max_window)
            say_next("calibrate", *names.words, *given, *reach_words, "--quick", "--out", profile)


def _in_words(result: dict[str, Any]) -> str:
    from mirrorsd.repeating_texts import repeating_sentence
    from planner.wording import counted, percent

    size = f"{counted(result['num_prompts'], 'prompt')}, {counted(result['num_tokens'], 'token')}"
    words = [f"Wrote {escaped(result['record'])}: {size}."]
    if (acceptance := result["token_acceptance"]) is not None:
        meaning = "that often the first token of a window is accepted" if acceptance else "nothing of it is accepted"
        words.append(f"The draft guesses {percent(acceptance)} of the target's tokens: {meaning}.")
    if repeating := result["repeating"]:
        words.append(repeating_sentence(repeating, result["num_prompts"]))
    return "\n".join(
        (
            *words,
            *map(escaped, result["left_out"]),
            *(
                f"{escaped(one['name'])}: {one['mean_acceptance_length']:.2f} tokens per round with the longest window."
                for one in result["chains"]
            ),
            *(
                f"{escaped(one['name'])}: {one['mean_acceptance_length']:.2f} tokens per round with the largest tree."
                for one in result["trees"]
            ),
        )
    )


def _summary(made: AcceptanceRecord, out: Path) -> dict[str, Any]:
    from planner.what_if.mixed_record import token_acceptance

    return {
        "record": str(out),
        "target": made.target,
        "drafter": made.drafter,
        "dtype": made.dtype,
        "backend": made.backend,
        "num_prompts": len(made.prompts),
        "num_tokens": sum(len(prompt.text) for prompt in made.prompts),
        "token_acceptance": None if made.drafter is None else token_acceptance(made),
        "repeating": [prompt.name for prompt in made.prompts if prompt.repeats_itself],
        "exit_layers": list(made.exit_layers),
        "max_window": made.max_window,
        "chains": list(_chains(made)),
        "trees": list(_trees(made)),
    }


def _chains(made: AcceptanceRecord) -> Iterator[dict[str, Any]]:
    """What drafters without a model would get accepted at most, over all positions of the texts."""
    from statistics import fmean

    for place, chain in enumerate(made.chains):
        lengths = [length for prompt in made.prompts for length in prompt.chain_lengths(place).tolist()]
        yield {"name": chain.drafter, "method": chain.method, "mean_acceptance_length": 1 + fmean(lengths)}


def _trees(made: AcceptanceRecord) -> Iterator[dict[str, Any]]:
    """What every kind of tree would get accepted at most, over all positions of the texts."""
    from statistics import fmean

    from decoding.schedule import MAX_TREE

    for place, tree in enumerate(made.trees):
        lengths = [length for prompt in made.prompts for length in prompt.tree_lengths(place, MAX_TREE).tolist()]
        expanded = f" top {tree.top_k}" if tree.top_k else ""
        yield {
            "name": f"{tree.drafter} ({tree.method}, {tree.depth} deep{expanded})",
            "drafter": tree.drafter,
            "method": tree.method,
            "depth": tree.depth,
            "top_k": tree.top_k,
            "mean_acceptance_length": 1 + fmean(lengths),
        }


def _shape(text: str) -> tuple[int, int]:
    """Depth and top-k from `5x8`."""
    from decoding.schedule import MAX_TREE, MAX_WINDOW

    found = re.fullmatch(r"(\d{1,3})x(\d{1,3})", text)
    depth, top_k = map(int, found.groups()) if found else (0, 0)
    if not (1 <= depth <= MAX_WINDOW and 1 <= top_k <= MAX_TREE):
        msg = f"--tree {text}: expected depth x top-k, such as 5x8"
        raise ConfigError(msg)
    return depth, top_k
