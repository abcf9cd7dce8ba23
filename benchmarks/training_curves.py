"""What distinct text, layers, exit features and adapter width buy: small training runs that differ in one thing each.

    python benchmarks/training_curves.py --data answers.jsonl.gz --out out/curves --states out/states

Trains drafts on shares of the data, of several depths and with several features, and exit adapters of several widths,
all drafts and all adapters on as many tokens. A run that is finished is not done again, one that was cut off goes on.
Takes about three hours on a core and may run next to other work. Writes benchmarks/results/training-curves.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from _common import RESULTS, arguments, markdown_table, measured, read_result, write_result

from decoding.files import is_gzipped
from decoding.yaml_file import write_atomically
from planner.wording import listing
from runtime.drafters.registry import TRAINED
from runtime.models.default_model import SMOLLM2, embedded_folder
from runtime.models.model_folder import NamedFolder
from training.data.states import read_conversations
from training.judging.card import Card, read_card
from training.recipe import DraftRecipe, ExitRecipe, Optimisation, TrainingRecipe
from training.run import RunProgress, run_recipe

T = TypeVar("T")

RESULT = RESULTS / "training-curves.json"
NUM_HELD_OUT = 100
SHARES = (16, 4, 1)
LAYERS = ((1, 30), (1, 2, 29, 30), (1, 2, 3, 28, 29, 30))
TAPS = ((20,), (2, 10), (2, 10, 20), (2, 10, 24))
"""Target layers whose states a draft of four layers reads."""
EXITS = (*((128, rate) for rate in (1e-3, 8e-3)), *((width, 3e-3) for width in (128, 256, 1024)))
"""Width and learning rate of adapters."""
EXIT_LAYERS = (15, 20, 24)
_HEAD_PARAMETERS = 8192 * 576
"""Kept rows of the target's head, which every step of a draft reads with its own parameters."""
_COMMON = {"vocab_size": 8192, "always_kept": (0, 1, 2), "num_held_out": NUM_HELD_OUT}


class Run(NamedTuple):
    """One training run: on the first 1/`share` of the conversations, and always judged on the same last ones."""

    name: str
    recipe: TrainingRecipe
    share: int = 1


def draft(layers: tuple[int, ...], share: int = 1, taps: tuple[int, ...] = ()) -> Run:
    """A draft of some of the target's layers, which reads tokens alone or the states after `taps` too."""
    name = f"draft-{len(layers)}-layers-share-{share}" + "".join(f"-tap-{layer}" for layer in taps)
    recipe = DraftRecipe(
        kind="draft",
        source_layers=layers,
        exit_features=taps,
        feature_layer=2 if taps else 0,
        optimisation=Optimisation(num_tokens=300_000, learning_rate=1e-3, conversations_per_step=4),
        **_COMMON,
    )
    return Run(name, recipe, share)


def exits(width: int, learning_rate: float) -> Run:
    """Adapters of one width after every exit layer."""
    optimisation = Optimisation(num_tokens=250_000, learning_rate=learning_rate, conversations_per_step=8)
    recipe = ExitRecipe(kind="exit", exit_layers=EXIT_LAYERS, width=width, optimisation=optimisation, **_COMMON)
    return Run(f"exits-width-{width}-rate-{learning_rate:g}", recipe)


def runs() -> list[Run]:
    """All of them; the draft of two layers on all of the text belongs to two curves."""
    drafts = [draft(LAYERS[0], share) for share in SHARES] + [draft(layers) for layers in LAYERS[1:]]
    drafts += [draft(LAYERS[1], taps=taps) for taps in TAPS]
    return drafts + [exits(*sizes) for sizes in EXITS]


def main() -> None:
    """Train the runs that are missing and write the result."""
    options = arguments(
        __doc__,
        data=([Path], "conversations of `mirrorsd train generate`"),
        out=([Path], "folder of the runs"),
        states=(Path, "the target's states of all the data, if they are there"),
    ).parse_args()
    found = {run.name: _figures(run, _trained(run, options), options.data) for run in runs()}
    weights = measured(embedded_folder())
    write_result(RESULT, {"data": options.data.name, "num_held_out": NUM_HELD_OUT, "measured": weights, "runs": found})


def shortened(conversations: Sequence[T], share: int) -> list[T]:
    """The first 1/`share` of what is not held out, and all that is."""
    num_trained = len(conversations) - NUM_HELD_OUT
    return [*conversations[: num_trained // share], *conversations[num_trained:]]


def _trained(run: Run, options: argparse.Namespace) -> Card:
    """The card of a run, which is done now if it was not before."""
    out = options.out / run.name
    if not (out / TRAINED).exists():
        data, states = options.data, options.states
        if run.share > 1:
            data, states = options.out / f"data-{run.share}.jsonl", options.out / f"states-{run.share}"
            write_atomically(data, "\n".join(shortened(_lines(options.data), run.share)) + "\n")
        target = NamedFolder(SMOLLM2.name, embedded_folder())
        run_recipe(run.recipe, target, [data], out, state_folder=states, progress=_printed(run.name))
    card = read_card(out / TRAINED)
    if card.recipe != json.loads(run.recipe.model_dump_json()):
        raise SystemExit(f"{out}: was trained by another recipe; remove it or choose another --out")
    return card


def _figures(run: Run, card: Card, data: Path) -> dict[str, Any]:
    conversations = read_conversations([data], vocab_size=1 << 20)
    rows = shortened(conversations, run.share)[:-NUM_HELD_OUT]
    figures: dict[str, Any] = {
        "distinct_tokens": sum(len(row.answer) for row in rows),
        "tokens_seen": card.num_training_tokens,
        "parameters": card.num_parameters,
        "bytes": card.num_bytes,
        "minutes": card.training_minutes,
    }
    if card.exit_coverage:
        return figures | {"exit_coverage": card.exit_coverage}
    lengths: dict[str, dict[int, float]] = {"without": {}, "with": {}}
    for one in card.acceptance:
        lengths["with" if one.with_features else "without"][one.num_tokens] = one.mean_acceptance_length
    return figures | card.held_out | {"mean_acceptance_length": lengths}


def sections() -> dict[str, str]:
    """Return the tables of docs/training.md, by marker."""
    found = read_result(RESULT)["runs"]
    return {"distinct": _distinct(found), "ladder": _ladder(found), "taps": _taps(found), "widths": _widths(found)}


def _distinct(found: Mapping[str, Any]) -> str:
    of = [found[draft(LAYERS[0], share).name] for share in SHARES]
    rows = [
        [f"{one['distinct_tokens']:,}", f"{one['tokens_seen'] / one['distinct_tokens']:.1f}", *_acceptance(one)]
        for one in of
    ]
    return markdown_table(["distinct answer tokens", "times seen", *_ACCEPTANCE], rows)


def _ladder(found: Mapping[str, Any]) -> str:
    of = [(layers, found[draft(layers).name]) for layers in LAYERS]
    rows = [
        [
            str(len(layers)),
            f"{one['bytes'] / 1e6:.1f}",
            f"{2 * (one['parameters'] + _HEAD_PARAMETERS) / 1e6:.0f}",
            *_acceptance(one),
        ]
        for layers, one in of
    ]
    return markdown_table(["layers", "MB", "MB read by a step", *_ACCEPTANCE], rows)


def _taps(found: Mapping[str, Any]) -> str:
    of = [(taps, found[draft(LAYERS[1], taps=taps).name]) for taps in TAPS]
    rows = [["none", "any", *_acceptance(found[draft(LAYERS[1]).name]), "", ""]]
    for taps, one in of:
        gained = [f"{one['mean_acceptance_length']['with'][window]:.2f}" for window in ("4", "5")]
        rows.append([listing([str(layer) for layer in taps]), str(max(taps)), *_acceptance(one), *gained])
    header = ["states after layer", "first exit", *_ACCEPTANCE, "with features, 4 drafted", "5 drafted"]
    return markdown_table(header, rows)


def _widths(found: Mapping[str, Any]) -> str:
    def row(width: int, learning_rate: float) -> list[str]:
        one = found[exits(width, learning_rate).name]
        covered = [f"{one['exit_coverage'][str(layer)]['8']:.3f}" for layer in EXIT_LAYERS]
        return [str(width), f"{learning_rate:g}", f"{one['bytes'] / 1e6:.1f}", *covered]

    header = ["width", "learning rate", "MB", *(f"top-8 after layer {layer}" for layer in EXIT_LAYERS)]
    return markdown_table(header, [row(*sizes) for sizes in EXITS])


_ACCEPTANCE = ("agreement", "tokens per round, 4 drafted", "5 drafted")


def _acceptance(one: Mapping[str, Any]) -> list[str]:
    lengths = one["mean_acceptance_length"]["without"]
    return [f"{one['agreement_without_features']:.3f}", f"{lengths['4']:.2f}", f"{lengths['5']:.2f}"]


def _lines(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if is_gzipped(path) else content).decode().splitlines()


def _printed(name: str) -> Callable[[RunProgress], None]:
    def show(event: RunProgress) -> None:
        report = event.report
        if report is None or report.scores:
            print(f"{name}: {event.stage}, {event.done} of {event.total}", flush=True)

    return show


if __name__ == "__main__":
    main()
