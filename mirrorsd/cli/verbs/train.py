"""`mirrorsd train`: trains drafters and exit adapters for a target, on the target's own text."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from decoding.errors import ConfigError
from mirrorsd.cli.console import escaped, say, show, telling_what_was_saved, write_json
from mirrorsd.cli.options import DEFAULT_TARGET, JsonOption, completing, option, output, output_folder
from mirrorsd.cli.progress_bar import task

if TYPE_CHECKING:
    from decoding.progress import ReportProgress
    from runtime.models.model_folder import NamedFolder
    from training.judging.card import Card
    from training.run import RunProgress

_MOST_COLUMNS = 6
_STAGES = {
    "states": ("1 of 3 the target's states", 0.0, 0.2),
    "training": ("2 of 3 training", 0.2, 0.95),
    "judging": ("3 of 3 judging", 0.95, 0.99),
}
"""Name of each stage, and its begin and end on the progress bar (a guess, since times depend on the recipe)."""

train = typer.Typer(
    no_args_is_help=True,
    help="Train a drafter, heads, streams or exit adapters for a target.",
    epilog="Example: [bold]mirrorsd train draft --data answers.jsonl.gz --out out/my-draft[/]",
)

DataOption = Annotated[list[Path], option("Token files of the target's own answers; may be repeated.", "--data")]
RunFolderOption = Annotated[
    Path, output_folder("Folder of the run: the checkpoint, and in the end the trained weights in drafter/.", "--out")
]
StatesOption = Annotated[
    Path | None,
    output_folder(
        "Folder for the target's hidden states, which recipes on the same data can share. Default: the folder of the "
        "run.",
        "--states",
    ),
]
_DeviceOption = Annotated[str, option("Where to train: cpu, cuda or cuda:0.")]
TaughtOption = Annotated[
    str,
    option(
        "Target model: the default model's name, or a Hugging Face folder or hub id (owner/model).",
        autocompletion=completing(lambda: (DEFAULT_TARGET,)),
    ),
]
RecipeOption = Annotated[str, option("A shipped recipe's name, or a YAML file.")]


@train.command(epilog="Example: [bold]mirrorsd train draft --data answers.jsonl.gz --out out/my-draft[/]")
def draft(
    data: DataOption,
    out: RunFolderOption,
    recipe: RecipeOption = "smollm2-135m-draft4",
    target: TaughtOption = DEFAULT_TARGET,
    device: _DeviceOption = "cpu",
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Distil a draft model; run it again to resume."""
    _train("draft", recipe, target, data, out, states=states, device=device, json=json)


@train.command(epilog="Example: [bold]mirrorsd train exits --data answers.jsonl.gz --out out/my-exits[/]")
def exits(
    data: DataOption,
    out: RunFolderOption,
    recipe: RecipeOption = "smollm2-135m-exits",
    target: TaughtOption = DEFAULT_TARGET,
    device: _DeviceOption = "cpu",
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Train exit adapters and print their exit coverage; run it again to resume."""
    _train("exit", recipe, target, data, out, states=states, device=device, json=json)


@train.command(
    epilog="Example: [bold]mirrorsd train recipe smollm2-135m-eagle3 --data answers.jsonl.gz --out out/my-eagle3[/]"
)
def recipe(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a YAML file.")],
    data: DataOption,
    out: RunFolderOption,
    target: TaughtOption = DEFAULT_TARGET,
    device: _DeviceOption = "cpu",
    states: StatesOption = None,
    json: JsonOption = None,
) -> None:
    """Train what a recipe describes: draft models, exits, heads or streams; run it again to resume."""
    _train(None, name, target, data, out, states=states, device=device, json=json)


@train.command(epilog="Example: [bold]mirrorsd train generate --out answers.jsonl.gz[/]")
def generate(
    out: Annotated[Path, output("Token file; gzipped if it ends in .gz.", kind="a token file")],
    passages: Annotated[
        list[Path] | None,
        option("Token files to take passages from, for a recipe of kind passages; may be repeated."),
    ] = None,
    recipe: RecipeOption = "smollm2-135m-selfgen",
    target: TaughtOption = DEFAULT_TARGET,
    device: Annotated[str, option("Where to generate: cpu, cuda or cuda:0.")] = "cpu",
    json: JsonOption = None,
) -> None:
    """Generate training text with the target; run it again to resume."""
    from training.recipe import load_text_recipe

    wanted = load_text_recipe(_recipe_path(recipe, for_text=True))
    say("Loading torch and the target ...")
    from runtime.models.hf_config import unheeded
    from training.text.generate_text import write_self_text

    with task("Finding the target") as report:
        model = _taught(target, report)
    warnings = list(filter(None, [unheeded(model.folder, wanted.answer_temperature)]))
    for warning in warnings:
        say(f"[yellow]{escaped(warning)}[/]")
    kept = f"What is finished is in {out}; the same command continues after it."
    with telling_what_was_saved(lambda: [kept] if out.exists() else []), task("Generating") as report:

        def progress(done: int, total: int) -> None:
            report(f"conversation {done} of {total}", done / total)

        write_self_text(wanted, model, out, sources=passages or (), device=device, progress=progress)
    result = {"path": str(out), "num_conversations": wanted.num_conversations, "warnings": warnings}
    if write_json(result, json):
        show(f"Wrote {escaped(out)}: {wanted.num_conversations:,} conversations")
        own = [] if target == DEFAULT_TARGET else ["--recipe", "RECIPE.yaml"]
        words = ["mirrorsd", "train", "draft", *_unless_default(target), *own, "--data", str(out), "--out", "my-draft"]
        show(f"To train a draft on them: [bold]{escaped(shlex.join(words))}[/]")


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
    from training.recipe import StreamSizes, load_recipe

    wanted = load_recipe(_recipe_path(recipe, for_text=False))
    if kind not in (None, wanted.kind):
        raise ConfigError(f"{recipe}: is a recipe of kind {wanted.kind!r}, not {kind!r}")
    say("Loading torch and the target ...")
    from training.judging.card import read_card
    from training.run import run_recipe

    kept = f"What is finished is in {out}; the same command continues from there."
    with telling_what_was_saved(lambda: [kept] if out.exists() else []), task("Training") as report:

        def progress(now: "RunProgress") -> None:
            report(*_share(now))

        model = _taught(target, report)
        folder = run_recipe(wanted, model, data, out, state_folder=states, device=device, progress=progress)
    card = read_card(folder)
    if write_json({"folder": str(folder), "card": card.model_dump(mode="json")}, json):
        _show_card(card, folder)
        show(f"Trained weights: {escaped(folder)}")
        option = {"draft": "--drafter", "streaming_draft": "--drafter", "exit": "--exits"}.get(card.kind, "--heads")
        words = ["mirrorsd", "demo", *_unless_default(target), option, str(folder)]
        if isinstance(wanted, StreamSizes):
            words += ["--device", "cpu"]  # compiled graphs (OpenVINO) cannot run streams
        show(f"To use them: [bold]{escaped(shlex.join(words))}[/]")


def _taught(target: str, progress: "ReportProgress") -> "NamedFolder":
    from runtime.models.model_folder import PREFIX, named_model

    if target.startswith(PREFIX):
        raise ConfigError(f"{target}: has random weights, from which nothing can be learnt; name a folder or a hub id")
    return named_model(target, progress=progress)


def _recipe_path(name: str, *, for_text: bool) -> Path:
    from training.recipe import shipped_recipes

    shipped = shipped_recipes()
    if name not in shipped and not Path(name).is_file():
        known = ", ".join(shipped_recipes(for_text=for_text))
        raise ConfigError(f"{name}: is neither a file nor a shipped recipe ({known})")
    return shipped.get(name, Path(name))


def _show_card(card: "Card", folder: Path) -> None:
    """Show the card's tables, without those too wide for a terminal."""
    from mirrorsd.cli.tables import plain_table
    from training.judging.card import TEXT_FILE

    show(f"[bold]{escaped(card.name)}[/]: {escaped(card.title)}")
    sections = list(card.sections())
    shown = [section for section in sections if len(section.header) <= _MOST_COLUMNS]
    for section in shown:
        table = plain_table(section.title, tuple(section.header), (), section.rows)
        table.show_header = any(section.header)
        show("")
        show(table)
    rest = "" if len(shown) == len(sections) else ", with the curve of the training"
    show(f"\nThe card{rest}: {escaped(folder / TEXT_FILE)}")


def _unless_default(target: str) -> list[str]:
    return [] if target == DEFAULT_TARGET else ["--target", target]


def _share(now: "RunProgress") -> tuple[str, float]:
    name, start, stop = _STAGES[now.stage]
    loss = f", loss {now.report.loss:.3f}" if now.report is not None else ""
    return f"{name}{loss}", start + min(now.done / max(now.total, 1), 1.0) * (stop - start)
