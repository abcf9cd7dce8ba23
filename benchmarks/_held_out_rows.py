"""Rows of `held_out.py`: which are there already, and how good the predictions of many are. Nothing is run here.

A row is one schedule in one run of a cell. It is written before the run, with what is predicted; what is measured is
null until the run is over.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import exp
from statistics import fmean, median
from typing import Any, Final

from sim.error_shares import Errors, ErrorShare, ratio_error

Row = Mapping[str, Any]

RUN: Final = ("machine", "date", "profile", "cell", "max_new_tokens", "num_prompts", "busy")
"""What rows of one run have in common, and no other run has."""


def run_of(row: Row) -> str:
    """Return the run that a row is of."""
    return json.dumps([row[name] for name in RUN], sort_keys=True)


def is_done(rows: Sequence[Row], run: Row) -> bool:
    """Return whether a run is among the rows and is over."""
    return any(is_measured(row) and run_of(row) == run_of(run) for row in rows)


def is_measured(row: Row) -> bool:
    """Return whether the run of a row is over."""
    return row["measured"] is not None


def use_of(row: Row) -> str:
    """Return whether a core had other work to do in the run of a row."""
    return "busy" if row["busy"] else "quiet"


def with_run(rows: Sequence[Row], own: Sequence[Row]) -> list[Row]:
    """Return the rows with those of a run, in place of any that it had; those of other runs stay as they are."""
    runs = set(map(run_of, own))
    return [*(row for row in rows if run_of(row) not in runs), *own]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return figures of all runs that are over, of quiet and busy ones, and by cell and machine.

    A machine may have another speed on another day, so what a profile of another day predicts has figures of its own.
    """
    over = [row for row in rows if is_measured(row)]
    same_day = [row for row in over if row["same_day"]]
    parts: dict[str, dict[str, list[Row]]] = {name: defaultdict(list) for name in ("by_use", "by_cell", "by_machine")}
    for row in same_day:
        use = use_of(row)
        parts["by_use"][use].append(row)
        parts["by_cell"][f"{row['cell']}, {use}"].append(row)
        machine = f"{row['machine']['cpu_model']} ({row['machine']['instruction_sets']}), {use}"
        parts["by_machine"][machine].append(row)
    return {
        "num_runs": len(set(map(run_of, over))),
        "all": figures(same_day),
        "profile_of_another_day": figures([row for row in over if not row["same_day"]]),
        **{name: {key: figures(own) for key, own in part.items()} for name, part in parts.items()},
    }


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how good the predictions of some rows are.

    `error` is that of times per token as they were measured: the median and the worst without its sign;
    of rows that know the machine's speed just before, `with_pace` is by it and `as_calibrated` without it.
    `interval_coverage` counts the 90 % intervals that hold such a time, `ratio_coverage` those that hold the ratio of
    two of one run on the same lanes. `speedup_error` is of speed-ups over plain pooled decoding; its sign stays: above
    zero promises too much. `by_calibration` has the lowest and the highest of the calibrations' own means.
    """
    paced = [row for row in rows if "paces" in row]
    before = [abs(row["predicted"]["as_calibrated_tpot_s"] / row["measured"]["tpot_s"] - 1) for row in paced]
    faster = [row["speedup"] for row in rows if row["speedup"] is not None]
    rounds = [row["rounds_equal"] for row in rows]
    return {
        "num_rows": len(rows),
        "num_prompts": len({prompt for row in rows for prompt in row["prompts"]}),
        "error": _spread([abs(row["tpot_error"]) for row in rows]),
        "with_pace": _spread([abs(row["tpot_error"]) for row in paced]),
        "as_calibrated": _spread(before),
        "interval_coverage": share_of(
            is_within(row["measured"]["tpot_s"], row["predicted"], "tpot_s_") for row in rows
        ),
        "ratio_coverage": share_of(same_lane_ratios(rows)),
        "speedup_error": _speedup_error(rows) if faster else None,
        "speedup_coverage": share_of(one["is_held"] for one in faster),
        "rounds_equal": {name: sum(each[name] for each in rounds) for name in ("equal", "of")},
    }


def _spread(errors: Sequence[float]) -> dict[str, float] | None:
    return {"median": median(errors), "worst": max(errors), "of": len(errors)} if errors else None


def _speedup_error(rows: Sequence[Row]) -> dict[str, Any]:
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["speedup"] is not None:
            errors[row["profile"]].append(row["speedup"]["error"])
    means = sorted(map(fmean, errors.values()))
    return {"mean": fmean(chain.from_iterable(errors.values())), "by_calibration": [means[0], means[-1]]}


def same_lane_ratios(rows: Sequence[Row]) -> Iterator[bool]:
    """Yield, for every two schedules of one run on the same lanes, whether the interval holds their measured ratio."""
    for one, other in combinations(rows, 2):
        if run_of(one) == run_of(other) and lanes_of(one) == lanes_of(other):
            predicted, measured = (one[world]["tpot_s"] / other[world]["tpot_s"] for world in ("predicted", "measured"))
            factor = exp(ratio_error(_errors(one), _errors(other)))
            yield predicted / factor <= measured <= predicted * factor


def speedup(predicted: Row, measured: float) -> dict[str, Any]:
    """Return a speed-up in both worlds; `predicted` has its value and the ends of its interval."""
    return {
        "predicted": predicted,
        "measured": measured,
        "error": predicted["value"] / measured - 1,
        "is_held": is_within(measured, predicted, ""),
    }


def _errors(row: Row) -> Errors:
    """Return what the machine's numbers may make a predicted time off by; a row has the half-widths alone."""
    return {cause: ErrorShare(1.0, half_width) for cause, half_width in row["errors"].items()}


def lanes_of(row: Row) -> tuple[str, str]:
    """Return the target's lane and the draft's; what decodes without one counts as drafting on the target's."""
    target = row["schedule"]["target_lane"]
    return target, row["schedule"].get("draft_lane", target)


def is_within(value: float, ends: Row, prefix: str) -> bool:
    """Return whether an interval holds a value."""
    return bool(ends[f"{prefix}low"] <= value <= ends[f"{prefix}high"])


def share_of(covered: Iterator[bool]) -> dict[str, int]:
    """Return how many are covered, and of how many."""
    found = list(covered)
    return {"covered": sum(found), "of": len(found)}
