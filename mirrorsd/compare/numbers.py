"""Entries of JSON results (no NaN or infinity), with the names of `decoding.metrics`; and the command to run next."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_jsonable_python

from decoding import metrics
from decoding.schedule import Schedule
from decoding.trace import Trace

if TYPE_CHECKING:
    from planner.paired_ratio import Ratio
    from planner.search.search import Candidate
    from sim.prediction import Prediction


def json_text(data: Any) -> str:
    """Return indented JSON with a final newline; numbers that are not finite become null."""
    plain = to_jsonable_python(data, inf_nan_mode="null")
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def path_from(folder: Path, path: Path) -> str:
    """Return `path` relative to `folder`, so that files that name each other can be moved together."""
    return os.path.relpath(path.resolve(), folder.resolve())


def run_command(path: Path, schedule: Schedule, models: Sequence[str] = (), *, temperature: float = 0.0) -> str:
    """Return the command that runs a schedule's file.

    `models` are the options that name target, exits and weights; exits that the schedule does not use are left out.
    """
    if "--exits" in models and not schedule.uses_exit:
        place = models.index("--exits")
        models = (*models[:place], *models[place + 2 :])
    sampled = ("--temperature", f"{temperature:g}") if temperature else ()
    question = ("--prompt", "Why is the sky blue?")
    return shlex.join(("mirrorsd", "run", "--schedule", str(path), *models, *sampled, *question))


_NAMES: Final = (
    "num_rounds num_accepted_tokens mean_acceptance_length reuse_rate num_tokens decode_s prefill_s ttft_s e2e_s"
)


def picked(one: object, names: str) -> dict[str, Any]:
    """Return attributes of an object, by name; `names` are separated by spaces."""
    return {name: getattr(one, name) for name in names.split()}


def schedule_entry(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as in its YAML file."""
    return schedule.model_dump(mode="json", exclude_defaults=True)


def ratio_entry(ratio: "Ratio | None") -> dict[str, Any] | None:
    """Return a ratio; the ends of an unknown interval become null."""
    if ratio is None:
        return None
    return picked(ratio, "value low high") | ({"low": None, "high": None} if ratio.low <= 0 else {})


def measured_numbers(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the metrics of one schedule's traces, one trace per prompt."""
    return {name: getattr(metrics, name)(traces) for name in ("tpot_s", *_NAMES.split())}


def predicted_numbers(prediction: "Prediction") -> dict[str, Any]:
    """Return the same metrics of a prediction, with the interval of the time per token."""
    return picked(prediction, f"tpot_s tpot_s_low tpot_s_high {_NAMES}")


def candidate_numbers(name: str, candidate: "Candidate") -> dict[str, Any]:
    """Return a schedule with its name and predicted metrics."""
    return {
        "name": name,
        "method": candidate.schedule.method,
        "placement": candidate.placement,
        "schedule": schedule_entry(candidate.schedule),
        "predicted": predicted_numbers(candidate.prediction),
    }


def prompt_numbers(trace: Trace) -> dict[str, Any]:
    """Return the numbers of one prompt; `accept_lengths` are committed tokens by round, whose sum is the new tokens."""
    return {
        "num_rounds": len(trace.rounds),
        "accept_lengths": [entry.num_committed for entry in trace.rounds],
        "prefill_s": trace.prefill_s,
        "decode_s": trace.decode_s,
    }
