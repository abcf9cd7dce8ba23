"""What streams inside a draft bring, as tables of docs/training.md (`benchmarks/draft_streams.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _common import markdown_table, with_section
from _stream_costs import METHODS


def with_tables(page: str, result: Mapping[str, Any]) -> str:
    """The page with what streams bring between its markers."""
    found = result["drafters"].values()
    prompts = dict.fromkeys(name for one in found for name, value in one.items() if _is_prompts(value))
    parts = [_tokens(result), *(_brought(result, name) for name in prompts), _price(result)]
    return with_section(page, "streams", "\n".join([*parts, _machine(result), _platforms(result)]))


def _is_prompts(value: object) -> bool:
    return isinstance(value, dict) and "right_guesses" in value


def _tokens(result: Mapping[str, Any]) -> str:
    said = (f"{one['num_training_tokens']:,} {one['trained']}" for one in result["drafters"].values())
    return f"Answer tokens that streams were trained on: {', '.join(said)}.\n"


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


def _machine(result: Mapping[str, Any]) -> str:
    """Predicted time per token on the machine of the committed profile."""
    of = {one["trained"]: one["this_machine"]["tpot_s"] for one in result["drafters"].values() if "this_machine" in one}
    rows = [[trained, *(_change(*found[method].values()) for method in METHODS)] for trained, found in of.items()]
    header = ["streams trained", "synchronous, ms per token", "mirror, ms per token"]
    said = "Predicted by a demo's profile and this price, without streams → with them, in the fastest schedules:"
    return f"{said}\n\n{markdown_table(header, rows)}"


def _platforms(result: Mapping[str, Any]) -> str:
    """Of every platform, time per token as planned and the price of a step."""
    of = {one["trained"]: one["platforms"] for one in result["drafters"].values() if "platforms" in one}
    first = next(iter(of.values()))
    rows = [
        [
            name,
            *(_change(one[name]["without_s"], one[name]["with_s"]) for one in of.values()),
            f"{own['step_cost']:.2f}",
        ]
        for name, own in first.items()
    ]
    header = ["platform", *(f"{trained}, ms per token" for trained in of), "plain steps that one costs"]
    said = (
        "Planned for platforms (`mirrorsd plan`, from the data sheets of then; streams are priced as a pass\n"
        "through all layers of the draft), the fastest speculation likewise. And the least that a step costs on\n"
        "any lane there, by the weights and kernels of the layers that streams do run through:"
    )
    return f"{said}\n\n{markdown_table(header, rows)}"


def _change(without_s: float, with_s: float) -> str:
    return f"{1e3 * without_s:.2f} → {1e3 * with_s:.2f}"
