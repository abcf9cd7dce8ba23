"""The card of a trained drafter (`card.json`, `card.md`): recipe, training data, costs, and held-out figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from decoding.errors import TrainingError
from decoding.files import replace_file
from decoding.validation import errors_as
from training.judging.drafter_acceptance import HeldOutAcceptance, StrictPart, TaskAcceptance, TopKShares

CARD_FILE = "card.json"
TEXT_FILE = "card.md"


class Section(NamedTuple):
    """A table of a card."""

    title: str
    """Empty for the first."""
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def text(self) -> str:
        """The section in Markdown."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"## {self.title}\n\n{table}" if self.title else table


class DataCard(StrictPart):
    """The training data: names of the files, and a SHA-256 of prompts and answers (`fingerprint`).

    `num_left_out`: training conversations dropped because they have the prompt of a held-out one; `num_conversations`
    does not count them.
    """

    files: tuple[str, ...]
    fingerprint: str
    num_conversations: int
    num_held_out: int
    num_left_out: int = 0


AcceptanceByTask = dict[str, dict[str, TaskAcceptance]]
"""Acceptance by the drafter's setting, then by kind of task."""


class CurvePoint(StrictPart):
    """Figures on held-out answers after `num_tokens` answer tokens of training, repeats included."""

    num_tokens: int
    scores: dict[str, float]


class Card(StrictPart):
    """What is known about a trained drafter.

    Attributes:
        num_parameters: trained parameters.
        num_training_tokens: answer tokens seen (for streams: positions with streams), repeats included.
        training_minutes: over all resumptions.
        held_out, curve: figures before weights were rounded to int8.
        acceptance, exit_coverage: figures of the drafter folder on disk.
        acceptance_on, benchmarks: acceptance on other prompts, and benchmarks, both added later.
    """

    name: str
    kind: Literal["draft", "exit", "medusa", "hydra", "eagle1", "eagle3", "streams", "streaming_draft"]
    target: str
    recipe: dict[str, Any]
    data: DataCard
    num_parameters: int
    num_bytes: int
    num_training_tokens: int
    training_minutes: float
    device: str
    held_out: dict[str, float]
    curve: tuple[CurvePoint, ...] = ()
    acceptance: tuple[HeldOutAcceptance, ...] = ()
    exit_coverage: TopKShares = Field(default={})
    untrained_exit_coverage: TopKShares = Field(default={})
    acceptance_on: dict[str, AcceptanceByTask] = Field(default={})
    benchmarks: dict[str, dict[str, float]] = Field(default={})

    @property
    def title(self) -> str:
        """The kind of drafter, and its target."""
        return f"{_TITLES[self.kind]} for {self.target}."

    def sections(self) -> Iterator[Section]:
        """Yield the tables of the card."""
        yield _facts(self)
        if self.kind != "exit":
            yield _figures("Held-out answers, before rounding to int8", self.held_out)
        if self.curve:
            yield _curve(self.curve, _counted(self))
        if self.acceptance:
            yield _acceptance(self.acceptance)
        if self.exit_coverage:
            yield _coverage(self)
        for prompts, found in self.acceptance_on.items():
            rows = [(name, task, *_cells(one)) for name, tasks in found.items() for task, one in tasks.items()]
            yield Section(f"Acceptance on {prompts}, by kind of task", ("setting", "task", *_BY_PLACE), rows)
        for name, figures in self.benchmarks.items():
            yield _figures(name, figures)

    @property
    def text(self) -> str:
        """The card in Markdown."""
        return "\n\n".join([f"# {self.name}\n\n{self.title}", *(section.text for section in self.sections())]) + "\n"


_TITLES = {
    "draft": "Draft model",
    "exit": "Exit adapters",
    "medusa": "Medusa-1 heads",
    "hydra": "Hydra++ heads",
    "eagle1": "EAGLE head",
    "eagle3": "EAGLE-3 head",
    "streams": "Speculative streams",
    "streaming_draft": "Draft model with streams",
}
_BY_PLACE = ("mean acceptance length", "conditional acceptance by position")


def _facts(card: Card) -> Section:
    rows = [
        ("trained parameters", f"{card.num_parameters:,}"),
        ("bytes on disk", f"{card.num_bytes:,}"),
        (f"{_counted(card)} seen", f"{card.num_training_tokens:,}"),
        ("minutes", f"{card.training_minutes:.0f} ({card.device})"),
        ("seed", str(card.recipe["optimisation"]["seed"])),
        ("data", ", ".join(card.data.files)),
        ("conversations (held out)", f"{card.data.num_conversations:,} ({card.data.num_held_out:,})"),
        ("SHA-256 of the data", card.data.fingerprint),
    ]
    if card.data.num_left_out:
        rows.insert(-1, ("left out: prompts of held-out ones", f"{card.data.num_left_out:,}"))
    return Section("", ("", ""), rows)


def _figures(title: str, figures: Mapping[str, float]) -> Section:
    return Section(title, ("figure", "value"), [(name, f"{value:.3f}") for name, value in figures.items()])


def _counted(card: Card) -> str:
    """Return what `num_training_tokens` counts, in words."""
    return "answer positions with streams" if card.kind == "streams" else "answer tokens"


def _curve(curve: Sequence[CurvePoint], counted: str) -> Section:
    names = tuple(curve[-1].scores)
    rows = [
        (f"{point.num_tokens:,}", *(f"{point.scores[name]:.3f}" if name in point.scores else "" for name in names))
        for point in curve
    ]
    return Section("Held-out answers by tokens seen", (counted, *names), rows)


def _cells(found: TaskAcceptance) -> tuple[str, str]:
    """Return the cells of a table's columns `_BY_PLACE`."""
    rates = " ".join(f"{rate:.2f}" for rate in found.conditional_acceptance_rate)
    return f"{found.mean_acceptance_length:.2f}", rates


def _acceptance(results: Sequence[HeldOutAcceptance]) -> Section:
    rows = [
        (
            str(result.tree_size or result.num_tokens),
            str(result.num_tokens) if result.tree_size else "chain",
            "yes" if result.with_features else "no",
            f"{result.num_rounds:,}",
            *_cells(result),
        )
        for result in results
    ]
    title = "Acceptance, simulated round by round on held-out greedy answers"
    return Section(title, ("drafted tokens", "depth", "features", "rounds", *_BY_PLACE), rows)


def _coverage(card: Card) -> Section:
    top_ks = list(next(iter(card.exit_coverage.values())))
    rows = [
        (f"{layer}, {state}", *(f"{coverage[layer][top_k]:.2f}" for top_k in top_ks))
        for layer in sorted(card.exit_coverage)
        for state, coverage in (("untrained", card.untrained_exit_coverage), ("trained", card.exit_coverage))
    ]
    header = ("exit after layer", *(f"top-{top_k}" for top_k in top_ks))
    return Section("Exit coverage on held-out answers", header, rows)


def write_card(card: Card, folder: Path) -> None:
    """Write both files, each atomically; raises `TrainingError` if the folder cannot be written."""
    with errors_as(TrainingError, f"{folder}: the card cannot be written"):
        replace_file(folder / CARD_FILE, (card.model_dump_json(indent=2) + "\n").encode())
        replace_file(folder / TEXT_FILE, card.text.encode())


def read_card(folder: Path) -> Card:
    """Return the card of a drafter folder; raises `TrainingError` if there is none."""
    path = folder / CARD_FILE
    with errors_as(TrainingError, f"{path}: not a readable card"):
        return Card.model_validate_json(path.read_bytes())


def add_benchmark(folder: Path, name: str, figures: Mapping[str, float]) -> None:
    """Add the figures of a benchmark to the card; replaces earlier ones of the same name."""
    card = read_card(folder)
    write_card(card.model_copy(update={"benchmarks": card.benchmarks | {name: dict(figures)}}), folder)


def add_acceptance(folder: Path, prompts: str, found: AcceptanceByTask) -> None:
    """Add the acceptance on other prompts to the card; replaces earlier figures for the same prompts."""
    card = read_card(folder)
    write_card(card.model_copy(update={"acceptance_on": card.acceptance_on | {prompts: found}}), folder)
