"""Runs a recipe: reads data, computes the target's states, trains, judges, and writes a drafter folder and card."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from decoding.errors import TrainingError
from decoding.files import replace_file
from decoding.validation import errors_as
from runtime.drafters.language_model.folder import DrafterFolderConfig
from runtime.drafters.registry import TRAINED, find_drafter
from runtime.models.config import ModelConfig
from runtime.models.decoder import load_decoder
from runtime.models.model_folder import NamedFolder
from runtime.storage.weight_folder import WEIGHTS_FILE, load_folder
from training.data.states import (
    Conversation,
    TargetStates,
    fingerprint,
    most_frequent_ids,
    read_conversations,
    weights_digest,
    with_held_out,
)
from training.judging.card import Card, DataCard, add_benchmark, read_card, write_card
from training.recipe import DraftStreamRecipe, StreamingDraftRecipe, TrainingRecipe
from training.tasks.chain_draft import DraftTask
from training.tasks.eagle import EagleTask
from training.tasks.heads import ExitTask, HydraTask, MedusaTask
from training.tasks.states_task import Judgement, StatesTask
from training.tasks.stream_tasks import DraftStreamTask, StreamingDraftTask, StreamTask
from training.trainer import Report, read_curve, train

RUN_FILE = "run.json"
_TARGET = "target"
"""Key of the target's name in `RUN_FILE`; a run may continue under another name if the weights are the same."""
_WEIGHTS = "target_weights"
_DRAFT_WEIGHTS = "drafter_weights"
"""Keys of digests in `RUN_FILE`."""
STATE_FOLDER = "states"
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """Progress of a run; counts conversations (states), answer tokens (training), or held-out passes (judging)."""

    stage: Literal["states", "training", "judging"]
    done: int
    total: int
    report: Report | None = None


def run_recipe(
    recipe: TrainingRecipe,
    target: NamedFolder,
    data_paths: Sequence[Path],
    out_folder: Path,
    *,
    state_folder: Path | None = None,
    device: str = "cpu",
    progress: Callable[[RunProgress], None] = lambda _: None,
) -> Path:
    """Run a recipe, or continue an interrupted run of it; return the drafter folder.

    Args:
        recipe: what to train.
        target: its name is written on the card.
        data_paths: token files of the target's answers (`training.data.states`).
        out_folder: its name is the drafter's name on the card.
        state_folder: for the target's hidden states, by default in `out_folder`; recipes on the same data may share it.
        device: "cpu", "cuda" or "cuda:0".
        progress: called with the progress.

    Raises:
        TrainingError: wrong data, recipe, checkpoint or folder, or the training diverges.
        ModelError: the target cannot be loaded or trained for.
    """
    config, place = ModelConfig.from_folder(target.folder), usable_device(device)
    config.require_rotary("trained drafts, heads and exits")
    found = read_conversations(data_paths, vocab_size=config.vocab_size, max_tokens=config.max_position)
    conversations = with_held_out(found, recipe.num_held_out)
    kept_ids = _kept_ids(recipe, conversations, config)
    data = DataCard(
        files=tuple(path.name for path in data_paths),
        fingerprint=fingerprint(conversations),
        num_conversations=len(conversations),
        num_held_out=recipe.num_held_out,
        num_left_out=len(found) - len(conversations),
    )
    decoder = load_decoder(target.folder, dtype=torch.bfloat16).to(place)  # takes long: wrong data are refused by now
    task_class = _TASKS[recipe.kind]
    task_class.require_fit(recipe, decoder)
    origin = {"recipe": recipe.model_dump(mode="json"), _TARGET: target.name, "data": data.fingerprint}
    _claim(out_folder, origin | {_WEIGHTS: weights_digest(decoder)} | _base_draft(recipe))
    states = TargetStates(state_folder or out_folder / STATE_FOLDER, decoder, conversations, recipe.state_layers)
    states.fill(lambda done, total: progress(RunProgress(stage="states", done=done, total=total)))
    task, folder = task_class(recipe, kept_ids, states), out_folder / TRAINED
    total = recipe.optimisation.num_tokens
    report = train(
        task,
        recipe.optimisation,
        out_folder,
        progress=lambda now: progress(RunProgress(stage="training", done=now.num_tokens, total=total, report=now)),
    )
    judgement = task.finish(
        folder,
        target_name=target.name,
        metadata=origin,
        progress=lambda done, total: progress(RunProgress(stage="judging", done=done, total=total)),
    )
    if judgement.extends is None:
        write_card(_card(out_folder, origin, task, data, report, judgement), folder)
    else:
        num_bytes = (folder / WEIGHTS_FILE).stat().st_size
        write_card(read_card(judgement.extends).model_copy(update={"num_bytes": num_bytes}), folder)
        spent = {"training_tokens": report.num_tokens, "training_minutes": round(report.elapsed_s / 60, 1)}
        add_benchmark(folder, f"{recipe.kind}, held out", _rounded(report.scores) | spent)
    return folder


def usable_device(name: str) -> torch.device:
    """Return the device of that name; raises `TrainingError` if this machine does not have it."""
    usable = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    usable += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if name not in usable:
        raise TrainingError(f"device {name!r} is not usable here; usable: {', '.join(usable)}")
    return torch.device(name)


_TASKS: Mapping[str, type[StatesTask[Any]]] = {
    "draft": DraftTask,
    "exit": ExitTask,
    "medusa": MedusaTask,
    "hydra": HydraTask,
    "streams": StreamTask,
    "draft_streams": DraftStreamTask,
    "streaming_draft": StreamingDraftTask,
    "eagle1": EagleTask,
    "eagle3": EagleTask,
}
"""Task class of each kind of recipe."""


def _kept_ids(recipe: TrainingRecipe, conversations: list[Conversation], config: ModelConfig) -> Tensor:
    largest = max((recipe.vocab_size - 1, *recipe.always_kept))
    if largest >= config.vocab_size:
        msg = f"vocab_size and always_kept reach up to {largest}: the target has ids 0..{config.vocab_size - 1}"
        raise TrainingError(msg)
    training = conversations[: -recipe.num_held_out]
    return torch.tensor(most_frequent_ids(training, recipe.vocab_size, always=recipe.always_kept))


def _base_draft(recipe: TrainingRecipe) -> dict[str, str]:
    """Return the digest of the draft model that streams are trained in, if any."""
    if not isinstance(recipe, StreamingDraftRecipe | DraftStreamRecipe):
        return {}
    config, _ = load_folder(find_drafter(recipe.drafter), DrafterFolderConfig)
    return {_DRAFT_WEIGHTS: config.weights_sha256}


def _claim(folder: Path, origin: Mapping[str, Any]) -> None:
    """Write `RUN_FILE` for a new run; raises `TrainingError` if the folder holds another run."""
    path = folder / RUN_FILE
    with errors_as(TrainingError, f"{path}: cannot be read or written"):
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            replace_file(path, (json.dumps(origin, indent=2) + "\n").encode())
            return
        earlier = json.loads(path.read_bytes())
    before, now = _flat(earlier), _flat(origin)
    if before.get(_WEIGHTS) != now[_WEIGHTS]:
        called = f"a target called {before.get(_TARGET)}"
        raise TrainingError(f"{path}: the run here is of {called} with other weights; name another folder")
    for name in sorted((before.keys() | now.keys()) - {_TARGET}):
        if before.get(name) != now.get(name):
            msg = f"{path}: the run here has {name} {before.get(name)}, not {now.get(name)}; name another folder"
            raise TrainingError(msg)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        name: leaf
        for key, inner in value.items()
        for name, leaf in _flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }


def _card(
    folder: Path, origin: Mapping[str, Any], task: StatesTask[Any], data: DataCard, report: Report, judgement: Judgement
) -> Card:
    kind = origin["recipe"]["kind"]
    trained = [parameter for parameter in task.module.parameters() if parameter.requires_grad]
    exits, untrained = judgement.exit_coverage, judgement.untrained_exit_coverage
    return Card(
        name=folder.absolute().name,
        kind=kind,
        target=origin[_TARGET],
        recipe=origin["recipe"],
        data=data,
        num_parameters=sum(parameter.numel() for parameter in trained),
        num_bytes=(folder / TRAINED / WEIGHTS_FILE).stat().st_size,
        num_training_tokens=report.num_tokens,
        training_minutes=round(report.elapsed_s / 60, 1),
        device=trained[0].device.type,
        curve=read_curve(folder) if kind != "exit" else (),
        held_out=_rounded(report.scores),
        acceptance=judgement.acceptance,
        exit_coverage={layer: _rounded(shares) for layer, shares in exits.items()},
        untrained_exit_coverage={layer: _rounded(shares) for layer, shares in untrained.items()},
    )


def _rounded(figures: Mapping[K, float]) -> dict[K, float]:
    return {name: round(value, 4) for name, value in figures.items()}
