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
    from training.recipe import TrainingRecipe
    from training.run import RunProgress

train = typer.Typer(
    no_args_is_help=True,
    help="Train a drafter, heads, streams or exit adapters for a target.",
    epilog="Example: [bold]mirrorsd train draft --data answers.jsonl.gz --out out/my-draft[/]",
)

DataOption = Annotated[
    list[Path], typer.Option("--data", help="Token files of the target's own answers; may be repeated.")
]
RunFolderOption = Annotated[
    Path, typer.Option("--out", help="Folder of the run: checkpoint, and in the end the trained weights.")
]
StatesOption = Annotated[
    Path | None,
    typer.Option(
        "--states",
        help="Folder for the target's hidden states, which recipes on the same data can share; without it they lie "
        "in the folder of the run.",
        show_default=False,
    ),
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
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Distil a draft model; run it again to go on where it was stopped."""
    _train("draft", recipe, target, data, out, states=states, device=device, json=json)


@train.command(epilog="Example: [bold]mirrorsd train exits --data answers.jsonl.gz --out out/my-exits[/]")
def exits(
    data: DataOption,
    out: RunFolderOption,
    recipe: RecipeOption = "smollm2-135m-exits",
    target: TargetOption = "smollm2-135m-instruct",
    device: DeviceOption = "cpu",
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Train exit adapters and print their exit coverage; run it again to go on where it was stopped."""
    _train("exit", recipe, target, data, out, states=states, device=device, json=json)


@train.command(
    epilog="Example: [bold]mirrorsd train recipe smollm2-135m-eagle3 --data answers.jsonl.gz --out out/my-eagle3[/]"
)
def recipe(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a YAML file.")],
    data: DataOption,
    out: RunFolderOption,
    target: TargetOption = "smollm2-135m-instruct",
    device: DeviceOption = "cpu",
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Train whatever a recipe describes: drafts, exits, heads or streams; run it again to go on."""
    _train(None, name, target, data, out, states=states, device=device, json=json)


@train.command(epilog="Example: [bold]mirrorsd train generate --out answers.jsonl.gz[/]")
def generate(
    out: Annotated[Path, typer.Option(help="Token file; gzipped if it ends in .gz.")],
    passages: Annotated[
        list[Path] | None,
        typer.Option(help="Token files to take passages from, for a recipe of kind passages; may be repeated."),
    ] = None,
    recipe: RecipeOption = "smollm2-135m-selfgen",
    target: TargetOption = "smollm2-135m-instruct",
    device: DeviceOption = "cpu",
    json: JsonOption = None,
) -> None:
    """Let the target make its own training text; run it again to go on where it was stopped."""
    from training.text.text_recipe import load_text_recipe

    wanted = load_text_recipe(_recipe_path(recipe))
    say("Loading torch and the target ...")
    from runtime.models.model_folder import resolve_model
    from training.text.self_text import write_self_text

    saved = [f"The batches that were finished are in {out}; the same command goes on behind them."]
    with telling_what_was_saved(saved), task("Generating") as report:
        write_self_text(
            wanted,
            resolve_model(target),
            out,
            sources=passages or (),
            device=device,
            progress=lambda done, total: report(f"conversation {done} of {total}", done / total),
        )
    if write_json({"path": str(out), "num_conversations": wanted.num_conversations}, json):
        show(f"Wrote {escaped(out)}: {wanted.num_conversations:,} conversations")


def _train(
    kind: Literal["draft", "exit"] | None,
    recipe: str,
    target: str,
    data: list[Path],
    out: Path,
    *,
    states: Path | None,
    device: str,
    json: str | None,
) -> None:
    wanted = _recipe(recipe, kind)
    say("Loading torch and the target ...")
    from runtime.models.model_folder import resolve_model
    from training.judging.card import read_card
    from training.run import run_recipe

    saved = [f"What was finished is in {out}; the same command goes on from there."]
    with telling_what_was_saved(saved), task("Training") as report:
        folder = run_recipe(
            wanted,
            resolve_model(target),
            data,
            out,
            state_folder=states,
            device=device,
            progress=lambda now: report(*_told(now)),
        )
    card = read_card(folder)
    if write_json({"folder": str(folder), "card": card.model_dump(mode="json")}, json):
        show(escaped(card.text))
        show(f"Trained weights: {escaped(folder)}")


def _recipe(name: str, kind: str | None) -> TrainingRecipe:
    from decoding.errors import ConfigError
    from training.recipe import load_recipe

    recipe = load_recipe(_recipe_path(name))
    if kind not in (None, recipe.kind):
        msg = f"{name}: is a recipe of kind {recipe.kind!r}, not {kind!r}"
        raise ConfigError(msg)
    return recipe


def _recipe_path(name: str) -> Path:
    """A shipped recipe's file, or the user's own."""
    from decoding.errors import ConfigError
    from training.recipe import shipped_recipes

    shipped = shipped_recipes()
    if name not in shipped and not Path(name).is_file():
        msg = f"{name}: there is no such file, and no shipped recipe of that name ({', '.join(shipped)})"
        raise ConfigError(msg)
    return shipped.get(name, Path(name))


def _told(now: RunProgress) -> tuple[str, float]:
    step = {"states": "the target's states", "training": "training", "judging": "judging"}[now.stage]
    if now.report is not None:
        step += f", loss {now.report.loss:.3f}"
    return step, now.done / max(now.total, 1)
