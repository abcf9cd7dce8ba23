"""`mirrorsd train`: drafters and exit adapters for a target, from the target's own text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mirrorsd.cli.console import escaped, say, show, telling_what_was_saved
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import TargetOption
from mirrorsd.cli.progress import task

if TYPE_CHECKING:
    from training.recipe import DraftRecipe, ExitRecipe
    from training.run import RunProgress

train = typer.Typer(
    no_args_is_help=True,
    help="Train a drafter or exit adapters for a target.",
    epilog="Example: [bold]mirrorsd train draft --data answers.jsonl.gz --out out/my-draft[/]",
)

DataOption = Annotated[
    list[Path], typer.Option("--data", help="Token files of the target's own answers; may be repeated.")
]
RunFolderOption = Annotated[
    Path, typer.Option("--out", help="Folder of the run: checkpoint, and in the end the trained weights.")
]
DeviceOption = Annotated[str, typer.Option(help="Where to train: cpu, cuda or cuda:0.")]
RecipeOption = Annotated[str, typer.Option(help="A shipped recipe's name, or a YAML file.")]


@train.command(epilog="Example: [bold]mirrorsd train draft --data answers.jsonl.gz --out out/my-draft[/]")
def draft(
    data: DataOption,
    out: RunFolderOption,
    recipe: RecipeOption = "smollm2-135m-draft4",
    target: TargetOption = "smollm2-135m-instruct",
    device: DeviceOption = "cpu",
    json: JsonOption = None,
) -> None:
    """Distil a draft model; run it again to go on where it was stopped."""
    _train("draft", recipe, target, data, out, device, json)


@train.command(epilog="Example: [bold]mirrorsd train exits --data answers.jsonl.gz --out out/my-exits[/]")
def exits(
    data: DataOption,
    out: RunFolderOption,
    recipe: RecipeOption = "smollm2-135m-exits",
    target: TargetOption = "smollm2-135m-instruct",
    device: DeviceOption = "cpu",
    json: JsonOption = None,
) -> None:
    """Train exit adapters and print their exit coverage; run it again to go on where it was stopped."""
    _train("exit", recipe, target, data, out, device, json)


def _train(
    kind: Literal["draft", "exit"], recipe: str, target: str, data: list[Path], out: Path, device: str, json: str | None
) -> None:
    wanted = _recipe(recipe, kind)
    say("Loading torch and the target ...")
    from runtime.models.folder import resolve_model
    from training.card import read_card
    from training.run import run_recipe

    saved = [f"Checkpoints are in {out}; the same command goes on from the last one."]
    with telling_what_was_saved(saved), task("Training") as report:
        folder = run_recipe(
            wanted, resolve_model(target), data, out, device=device, progress=lambda now: report(*_told(now))
        )
    card = read_card(folder)
    if write_json({"folder": str(folder), "card": card.model_dump(mode="json")}, json):
        show(escaped(card.text))
        show(f"Trained weights: {escaped(folder)}")


def _recipe(name: str, kind: str) -> DraftRecipe | ExitRecipe:
    from decoding.errors import ConfigError
    from training.recipe import load_recipe, shipped_recipes

    shipped = shipped_recipes()
    recipe = load_recipe(shipped.get(name, Path(name)))
    if recipe.kind != kind:
        fitting = ", ".join(name for name in shipped if load_recipe(shipped[name]).kind == kind)
        msg = f"{name}: is a recipe of kind {recipe.kind!r}, not {kind!r}; shipped ones of that kind: {fitting}"
        raise ConfigError(msg)
    return recipe


def _told(now: RunProgress) -> tuple[str, float]:
    step = {"states": "the target's states", "training": "training", "judging": "judging"}[now.stage]
    if now.report is not None:
        step += f", loss {now.report.loss:.3f}"
    return step, now.done / max(now.total, 1)
