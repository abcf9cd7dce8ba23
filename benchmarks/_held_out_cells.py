"""What `held_out.py` decodes, by which schedules, and what is predicted and measured of it, as rows of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from _held_out_rows import speedup

from calibrate.prompts import Prompt, bundled_prompts, draw_prompts
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from mirrorsd.compare.measured_answer import put_together
from mirrorsd.compare.numbers import picked, schedule_entry
from mirrorsd.compare.runs import Measured
from planner.paired_ratio import ratio_of
from planner.search.search import Candidate, search
from planner.search.space import SearchSpace
from planner.wording import schedule_names
from sim.evaluator import Evaluator

LONGEST_ANSWER: Final = 1024
METHODS_RUN: Final = ("autoregressive", "prompt_lookup", "speculative", "mirror")
WANTED: Final[tuple[Mapping[str, Any], ...]] = (
    {"kind": "plain", "placement": "pooled"},
    {"kind": "plain", "placement": "split"},
    {"kind": "lookup", "placement": "pooled"},
    {"kind": "synchronous", "placement": "pooled"},
    {"kind": "synchronous", "placement": "split"},
    {"kind": "mirror", "root_source": "exit"},
    {"kind": "mirror", "root_source": "draft"},
)
"""Schedules that are run, plain pooled decoding first: speed-ups are over it."""

Json = dict[str, Any]


class Cell(NamedTuple):
    """Prompts, up to how many new tokens are decoded after each, and how many of them on a busy machine as well."""

    name: str
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    num_busy: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """What all cells are predicted from and run with.

    Attributes:
        profile: the machine.
        facts: of it and of the day, the same in every row.
        schedules: what is run, with what is predicted of the first cell.
    """

    profile: Profile
    facts: Json
    schedules: tuple[Candidate, ...]


def cells(seed: int) -> tuple[Cell, ...]:
    """Return all cells of the calibration that draws by this seed; each cell has prompts of its own."""
    known = {prompt.prompt_id for prompt in bundled_prompts()}
    drawn = draw_prompts([one for one in bundled_prompts("pool") if one.prompt_id not in known], 18, seed)
    long = draw_prompts(bundled_prompts("long"), 2, seed)
    return (
        Cell("short-32", drawn[:8], 32, num_busy=4),
        Cell("short-256", drawn[8:14], 256, num_busy=3),
        Cell("short-1024", drawn[14:], LONGEST_ANSWER),
        Cell("long-64", (*long, longest_prompt()), 64),
    )


def longest_prompt() -> Prompt:
    """Return one of some 1,800 tokens, made of two shipped ones."""
    known = {one.prompt_id: one for one in bundled_prompts("long")}
    parts = known["long-passages"], known["long-numbers"]
    name = " + ".join(one.prompt_id for one in parts)
    text = "\n\n".join(one.text for one in parts)
    return Prompt(prompt_id=name, category=parts[1].category, turns=(text,))


def best_of_kinds(profile: Profile, accepted: AcceptanceRecord) -> tuple[Candidate, ...]:
    """Return the schedules of `WANTED` that are predicted fastest; what the machine has no lanes for is left out."""
    found = search(SearchSpace(methods=METHODS_RUN), profile, accepted)
    best = (found.best(**wanted) for wanted in WANTED)
    return tuple(candidate for candidate in best if candidate is not None)


def at_present(basis: Basis, paces: Mapping[str, float]) -> Basis:
    """Return the same for a machine whose lanes now have these paces; rows say so, and what was predicted without."""
    return replace(basis, profile=basis.profile.at_paces(paces), facts=basis.facts | {"paces": dict(paces)})


def predicted(profile: Profile, basis: Basis, accepted: AcceptanceRecord) -> list[Candidate]:
    """Return the schedules with what a profile predicts of a record."""
    evaluator = Evaluator(profile, accepted)
    return [replace(one, prediction=evaluator.predict(one.schedule)) for one in basis.schedules]


def predicted_rows(
    basis: Basis, as_calibrated: Sequence[Candidate], accepted: AcceptanceRecord, run: Json
) -> tuple[list[Candidate], list[Json]]:
    """Return the schedules with what is predicted of a record, and their rows before anything is run."""
    candidates = predicted(basis.profile, basis, accepted)
    names = schedule_names([(one.schedule, one.placement) for one in candidates])
    plain = candidates[0].prediction
    rows = []
    for name, one, before in zip(names, candidates, as_calibrated, strict=True):
        ratio = ratio_of(one.prediction, plain).on_these
        rows.append(
            basis.facts
            | run
            | {
                "name": name,
                "schedule": schedule_entry(one.schedule),
                "predicted": picked(one.prediction, "tpot_s tpot_s_low tpot_s_high")
                | {"as_calibrated_tpot_s": before.tpot_s},
                "errors": {cause: share.half_width for cause, share in one.prediction.errors.items()},
                "speedup": None if one is candidates[0] else {"predicted": picked(ratio, "value low high")},
                "measured": None,
            }
        )
    return candidates, rows


def measured_rows(
    rows: Sequence[Json], candidates: Sequence[Candidate], measured: Measured, basis: Basis, accepted: AcceptanceRecord
) -> list[Json]:
    """Return the rows with what was measured; what was predicted stays as it was written."""
    names = [row["name"] for row in rows]
    results, comparisons = put_together(candidates, names, measured, basis.profile, accepted)
    plain_s = results[0].measured_s
    return [
        row
        | {
            "measured": {
                "tpot_s": one.measured_s,
                "tpot_s_at_anchor": one.measured_at_anchor_s,
                "num_tokens": sum(len(prompt.text) for prompt in accepted.prompts),
                "num_repeating": sum(prompt.repeats_itself for prompt in accepted.prompts),
            },
            "tpot_error": row["predicted"]["tpot_s"] / one.measured_s - 1,
            "rounds_equal": {"equal": rounds.num_equal, "of": rounds.num_prompts},
            "speedup": row["speedup"] and speedup(row["speedup"]["predicted"], plain_s / one.measured_s),
        }
        for row, one, rounds in zip(rows, results, comparisons, strict=True)
    ]


def run_facts(cell: Cell, *, busy: bool) -> Json:
    """Return what the rows of a run say of its cell."""
    prompts = [one.prompt_id for one in cell.prompts][: cell.num_busy if busy else None]
    facts = {"cell": cell.name, "max_new_tokens": cell.max_new_tokens, "num_prompts": len(prompts)}
    return facts | {"prompts": prompts, "busy": busy}
