"""What becomes of a question: a lawful answer, or an error in a line or a few. Anything else is a defect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from typer.main import get_command
from typer.testing import CliRunner

from decoding.errors import MOST_CHARACTERS
from hwprofiles.platform import load_platform
from mirrorsd.cli.app import app
from tests.mutated_files.kind import numbers
from tests.planner.platform_plan.random_words import random_words

ANSWERED: Final = "answered"
REFUSED: Final = "refused"
ROUNDING: Final = 1e-8
A_STEP: Final = 0.02
"""What overlapping schedules may lose where a part gets faster: a miss waits for the step under way."""


_RUNNER: Final = CliRunner()
_COMMAND: Final = get_command(app)
"""Made once: that takes as long as many an answer."""


class UntoldError(AssertionError):
    """A question that was neither answered nor refused, or an answer that breaks a law."""


def outcome(seed: int, folder: Path) -> str:
    """Ask the question of a seed, and of some also what more acceptance and more bandwidth bring.

    Raises:
        UntoldError: says what is wrong, and the question.
    """
    words = random_words(seed, folder)
    try:
        found = answer(words)
        if found is None:
            return REFUSED
        require_lawful(found, words)
        if seed % 10 == 0:
            _require_rising(words, found)
    except UntoldError as error:
        raise UntoldError(f"{error}: mirrorsd {' '.join(words)}"[:600]) from error
    return ANSWERED


def answer(words: list[str]) -> dict[str, Any] | None:
    """The answer in JSON; None where the question is refused in words.

    Raises:
        UntoldError: neither.
    """
    status, error = 0, None
    with _RUNNER.isolation() as (stdout, stderr, _):
        try:
            _COMMAND.main(args=[*words, "--json"], prog_name="mirrorsd")
        except SystemExit as left:
            status = left.code
        except Exception as broken:  # noqa: BLE001  whatever a user would see
            error = broken
        said, printed = stderr.getvalue().decode(), stdout.getvalue().decode()
    if error is not None or status not in (0, 2):
        raise UntoldError(f"exit {status}, {type(error).__name__}: {error}"[:300])
    if status == 2:
        # the frame of a mistake in options is added to it
        if not 0 < len(said) <= 4 * MOST_CHARACTERS:
            raise UntoldError(f"a message of {len(said)} characters")
        return None
    found: dict[str, Any] = json.loads(printed)
    return found


def require_lawful(found: dict[str, Any], words: list[str]) -> None:
    """What holds for every answer."""
    ranking = found["ranking"]
    times = [row["tpot_s"] for row in ranking]
    drafting = [row for row in ranking if row["method"] != "autoregressive"]
    speed, given = found["speedup"], "--acceptance" in words
    offered = [row for row in drafting if not row["needs_training"]]
    laws = {
        "events confirm it": found["confirmed_by_events"]["agrees"],
        "all numbers are finite": all(map(math.isfinite, numbers(found))) and all(times),
        "the ranking is by time": times == sorted(times),
        "plain decoding is ranked": len(drafting) < len(ranking),
        "intervals hold their times": all(row["tpot_s_low"] <= row["tpot_s"] <= row["tpot_s_high"] for row in ranking),
        "no schedule beats its bound": all(row["speedup"] <= row["bound"] * (1 + ROUNDING) for row in ranking),
        "plain decoding is no faster than itself": all(
            row["speedup"] <= 1 + ROUNDING for row in ranking if row["method"] == "autoregressive"
        ),
        "yes is above one": found["pays"] != "yes" or speed["low"] > 1,
        "no is not above one": found["pays"] != "no" or speed is None or speed["high"] < 1,
        "nothing beats the front": not any(_beats(row, one) for one in found["pareto"] for row in offered),
        "numbers that turn the answer do so within their ends": all(
            one["low"] <= one["flips_at"] <= one["high"] for one in found["tornado"] if one["flips_at"] is not None
        ),
        "the best is as fast as itself": all(
            math.isclose(row["over_best"]["value"], _best_s(ranking) / row["tpot_s"], rel_tol=1e-6) for row in ranking
        ),
        "what was given is not asked for": not (given and "measure the acceptance" in found["verdict"]),
        "recommended is the fastest that can be run": (speed is None) == (not offered)
        and (speed is None or math.isclose(speed["value"], offered[0]["speedup"], rel_tol=1e-6)),
        "exits are to be trained unless they are there": "--trained-exits" not in words or offered == drafting,
    }
    if broken := [law for law, holds in laws.items() if not holds]:
        raise UntoldError(f"{broken[0]} does not hold")


def _best_s(ranking: list[dict[str, Any]]) -> float:
    return min(row["tpot_s"] for row in ranking if not row["needs_training"])


def _beats(row: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether a row takes no more of anything than one of the front, and less of something."""
    ours, theirs = (
        [
            math.inf if of[name] is None else of[name]
            for name in ("tpot_s", "energy_j_per_token", "usd_per_million_tokens")
        ]
        for of in (row, one)
    )
    return ours != theirs and all(mine <= its for mine, its in zip(ours, theirs, strict=True))


def _require_rising(words: list[str], found: dict[str, Any]) -> None:
    """More acceptance is never less speed-up, and a device more and more bandwidth are never a longer time."""
    if "--acceptance" in words and (text := words[words.index("--acceptance") + 1]).replace(".", "").isdigit():
        better = answer([*words, "--acceptance", f"{(1 + float(text)) / 2:g}"])
        if better is not None:
            _require_no_slower("more acceptance", found, better)
    if "--add" in words:
        place = words.index("--add")
        before = answer([*words[:place], *words[place + 2 :]])
        if before is not None:
            _require_no_slower("a device more", before, found)
    if "--set" in words or "--platform" not in words:
        return
    platform = load_platform(words[words.index("--platform") + 1])
    shared = {device for pool in platform.memory_pools.values() for device in pool.devices}
    rates = [f"{pool}.bytes_per_s" for pool in platform.memory_pools]
    rates += [f"{device}.memory_bytes_per_s" for device in platform.devices if device not in shared]
    faster = answer([*words, *(word for rate in rates for word in ("--set", f"{rate}=+30%"))])
    if faster is not None:
        _require_no_slower("more bandwidth", found, faster)


def _require_no_slower(what: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    in_turn = "autoregressive", "speculative"
    for methods, loss in ((in_turn, ROUNDING), ((*in_turn, "mirror"), A_STEP)):
        then, now = (
            min(row["tpot_s"] for row in one["ranking"] if row["method"] in methods) for one in (before, after)
        )
        if now > then * (1 + loss):
            raise UntoldError(f"with {what} {methods[-1]} takes {now / then:.4f} of its time")
