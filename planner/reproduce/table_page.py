"""The page of a reproduction (one HTML file that opens offline) and the sentences that `mirrorsd reproduce` prints."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from costs.cost_model import Part
from costs.prices import Prices
from costs.round_plan import LAYER, LM_HEAD
from decoding.errors import MirrorsdError, shown
from hwprofiles.model_shape import ModelShape, model_shape
from hwprofiles.platform import Platform, load_platform
from planner.page_template import rendered
from planner.published.stream_rates import TOKENS_PER_HIDDEN_STEP, WINDOW
from planner.reproduce.fitted_table import Baselines, Origin
from planner.reproduce.published_table import PublishedTable, load_table, plain_name
from planner.reproduce.reproduction import Reproduction
from planner.reproduce.setup import PROMPT_TOKENS, Unknown
from planner.verdict import fact
from planner.wording import counted, error_percent, factor, milliseconds, signed_percent

_FILE: Final = Path(__file__).with_name("tokens-per-round.csv")
_NUM_HEADS: Final = 4


class OtherColumn(NamedTuple):
    """Mean published and predicted speed-ups of a method over the greedy cells that can be compared."""

    method: str
    num_cells: int
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the relative error, positive if the speed-up is overestimated."""
        return self.predicted / self.published - 1


def other_columns(found: Reproduction) -> list[OtherColumn]:
    """Return every method of the table whose tokens per round were published, in the order of that file."""
    setup = found.setup
    machine = setup.profile(found.constants)
    prices, lane = Prices(machine.profile, machine.costs), setup.target_lane
    one_s = prices.pass_s(lane, 1, PROMPT_TOKENS)

    def seconds(calls: Mapping[Part, int], rows: int) -> float:
        return prices.calls_s(lane, calls, rows, float(PROMPT_TOKENS))

    columns = []
    for method, rows in _published_tokens():
        cells = [pair for row in rows for pair in _cells(found.table, method, row)]
        if cells:
            tree_rows, steps, nodes = (int(rows[0][name]) for name in ("rows", "steps", "nodes"))
            drafting_s = steps * seconds({LAYER: 1, LM_HEAD: 1}, nodes) if nodes else seconds({LM_HEAD: _NUM_HEADS}, 1)
            a_token = one_s / (prices.pass_s(lane, tree_rows, PROMPT_TOKENS) + drafting_s)
            published, tokens = (fmean(values) for values in zip(*cells, strict=True))
            columns.append(OtherColumn(method, len(cells), published, tokens * a_token))
    return columns


def _published_tokens() -> Iterator[tuple[str, list[dict[str, str]]]]:
    with _FILE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for method, group in groupby(rows, key=lambda row: row["method"]):
        yield method, list(group)


def _cells(table: PublishedTable, method: str, row: Mapping[str, str]) -> Iterator[tuple[float, float]]:
    """Yield (published speed-up, tokens per round) of the greedy cells of a row's task; of all cells if it has none."""
    task, column = plain_name(row["task"]), plain_name(method)
    for cell in table.cells:
        if cell.temperature == 0 and task in ("", plain_name(cell.task)):
            yield from (
                (value, float(row["tokens"])) for name, value in cell.others.items() if plain_name(name) == column
            )


ARM_NAMES = ("SD", "SD + streams", "Mirror-SD, plain draft", "Mirror-SD + streams")
ASSUMED: Final = (
    "plain decoding's time per token, which was not published",
    f"streams are right so often that {WINDOW} tokens take {WINDOW / TOKENS_PER_HIDDEN_STEP:g} steps, as published",
    "rows of streams run only in the last layers of a step, as in Speculative Streaming",
    "vanilla SD uses the same draft on the same devices",
)


_SIDE: Final = 400.0
"""Width and height of the picture, in its own units."""


def render_page(found: Reproduction, baselines: Baselines, origin: Origin) -> str:
    """Return the page as text."""
    top = int(max(max(cell.mirror, cell.published.mirror or 0.0) for cell in found.cells)) + 1
    return rendered(
        Path(__file__).with_name("table_page.html"),
        found=found,
        origin=origin.words,
        paragraphs=list(sentences(found, baselines, origin)),
        others=other_columns(found),
        arm_names=ARM_NAMES,
        arms=list(zip(ARM_NAMES, found.mean_arms, strict=True)),
        fastest=max(found.mean_arms),
        unknowns=found.setup.unknowns(),
        side=_SIDE,
        top=top,
        ticks=[(_SIDE * tick / top, tick) for tick in range(top + 1)],
    )


def sentences(found: Reproduction, baselines: Baselines, origin: Origin) -> Iterator[str]:
    """Yield the lines that describe a reproduction, caveats first; `origin` says where the constants come from."""
    means = list(found.mean_arms)
    arms = [f"{name} {factor(mean)}" for name, mean in zip(ARM_NAMES, means, strict=True)]
    facts: dict[str, Iterable[str]] = {
        "Predicted for another model or machine than the table's, so errors include that difference": _others(found),
        "Named by the table, but unknown here, so not compared with what is predicted": _unknown(found.table),
        "At an end of its plausible range, so no explanation of the machine": [one.name for one in at_bounds(found)],
        "Mean |error| of predicted Mirror-SD": [*_errors(found), *_baselines(baselines)],
        "Mean speed-up over plain decoding": [
            *arms,
            f"{'in' if means == sorted(means) else 'not in'} the order of the paper's ablations",
        ],
        "Other methods, greedy, by tokens per round published for other targets": [
            f"{one.method} {factor(one.predicted)}, published {factor(one.published)}" for one in other_columns(found)
        ],
        "Fit": _cautions(found, origin),
        f"Plain decoding takes {milliseconds(found.arms.plain_s)} per token by these constants. Assumed": ASSUMED,
    }
    for label, items in facts.items():
        yield from fact(label, items)


def _others(found: Reproduction) -> Iterator[str]:
    """Yield how model and machine of the prediction differ from those that the table names."""
    table, machine, shape = found.table, found.setup.platform, found.setup.target.shape
    model, platform = _called(table.target, model_shape), _called(table.platform, load_platform)
    if model not in (None, shape.name):
        yield f"the prediction is for {shape.name}, the table is of {model} (--target {table.target})"
    if platform not in (None, machine.name):
        yield f"the prediction is for {machine.name}, the table is of {platform} (--platform {table.platform})"


def _unknown(table: PublishedTable) -> Iterator[str]:
    """Yield the model and the machine of the table if their names are unknown."""
    if table.target is not None and _called(table.target, model_shape) is None:
        yield f"target {shown(table.target)}"
    if table.platform is not None and _called(table.platform, load_platform) is None:
        yield f"platform {shown(table.platform)}"


def _called(told: str | None, load: Callable[[str], ModelShape | Platform]) -> str | None:
    """Return the full name of a model or a machine; None if it is not given, or unknown."""
    try:
        return None if told is None else load(told).name
    except MirrorsdError:
        return None


def _baselines(baselines: Baselines) -> Iterator[str]:
    if baselines.left_out is not None:
        yield f"{error_percent(baselines.left_out)} if each task is left out of the fit"
    if baselines.constant is not None:
        baseline = "one constant times vanilla SD, each cell left out of it"
        yield f"{error_percent(baselines.constant)} for a baseline: {baseline}"


def at_bounds(found: Reproduction) -> list[Unknown]:
    """Return the constants at an end of their plausible range."""
    return [
        one
        for one in found.setup.unknowns()
        if any(isclose(found.constants[one.name], end, rel_tol=1e-3) for end in (one.low, one.high))
    ]


def _errors(found: Reproduction) -> Iterator[str]:
    compared = [cell for cell in found.cells if cell.error is not None]
    if found.mean_abs_error is None:
        yield "no Mirror-SD is published in this table"
        return
    worst, error = max(((cell, cell.error or 0.0) for cell in compared), key=lambda pair: abs(pair[1]))
    yield f"{error_percent(found.mean_abs_error)} over {counted(len(compared), 'cell')}"
    yield f"at most {signed_percent(error)}, {worst.published.task} at T = {worst.published.temperature:g}"
    leads = [(one.lead, one.published_lead) for one in found.cells if one.lead and one.published_lead]
    if leads:
        predicted, published = map(fmean, zip(*leads, strict=True))
        yield f"mean lead over the published EAGLE-3 {factor(predicted)} predicted, {factor(published)} published"


def _cautions(found: Reproduction, origin: Origin) -> Iterator[str]:
    if found.fitted:
        yield (
            f"{counted(len(found.fitted), 'constant')} fitted to these very cells: the error says how well they "
            "explain this table; with --no-fit, how well constants predict a table that they were not fitted to"
        )
    elif _is_of_these_cells(origin, found.table) and not any(_others(found)):
        yield "the constants were fitted to this very table earlier, so the error is that of a fit"
    missed = sum(not cell.is_reached for cell in found.cells)
    if missed:
        yield f"no acceptance gives vanilla SD's published speed-up in {counted(missed, 'cell')}; the nearest is used"


def _is_of_these_cells(origin: Origin, table: PublishedTable) -> bool:
    """Return whether constants were fitted to a shipped table with the same numbers as this one."""
    if origin.table is None:
        return False
    own, theirs = (
        [(cell.temperature, cell.task, cell.vanilla, cell.mirror) for cell in of.cells]
        for of in (table, load_table(origin.table))
    )
    return own == theirs
