"""Random questions are answered by the laws, or refused in words."""

import json
import math
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from decoding.errors import MOST_CHARACTERS
from hwprofiles.platform import load_platform
from mirrorsd.cli.app import app
from tests.mutated_files.kind import numbers
from tests.planner.platform_plan.random_words import random_words

ROUNDING = 1e-8
A_STEP = 0.02
"""What overlapping schedules may lose where a part gets faster: a miss waits for the step under way."""
RUNNER, COMMAND = CliRunner(), get_command(app)
"""Made once: that takes as long as many an answer."""


@pytest.mark.parametrize("first", [0, 10, 20])
def test_random_questions_are_answered_by_the_laws_or_refused_in_words(first, tmp_path):
    answered = []
    for seed in range(first, first + 10):
        folder = tmp_path / f"{seed}"  # of its own: it is asked again when others have written theirs
        folder.mkdir()
        words = random_words(seed, folder)
        if (found := answer(words)) is not None:
            broken = [law for law, holds in laws(found, words).items() if not holds]
            assert not broken, " ".join(words)
            answered.append((words, found))
    assert len(answered) > 1
    require_rising(*answered[0])


def answer(words: list[str], *, refused_since: str = "") -> dict[str, Any] | None:
    """Return the answer in JSON; None where the question is refused in words, `refused_since` among them."""
    status = 0
    with RUNNER.isolation() as (stdout, stderr, _):
        try:
            COMMAND.main(args=[*words, "--json"], prog_name="mirrorsd")
        except SystemExit as left:
            status = left.code
        said, printed = stderr.getvalue().decode(), stdout.getvalue().decode()
    assert status in (0, 2), " ".join(words)
    if status == 0:
        found: dict[str, Any] = json.loads(printed)
        return found
    # the frame of a mistake in options is added to it
    assert 0 < len(said) <= 4 * MOST_CHARACTERS, " ".join(words)
    assert refused_since in said, said
    return None


def laws(found: dict[str, Any], words: list[str]) -> dict[str, bool]:
    """What holds for every answer."""
    ranking = found["ranking"]
    times = [row["tpot_s"] for row in ranking]
    drafting = [row for row in ranking if row["method"] != "autoregressive"]
    speed, given = found["speedup"], "--acceptance" in words
    offered = [row for row in drafting if not row["needs_training"]]
    best_s = min(row["tpot_s"] for row in ranking if not row["needs_training"])
    return {
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
        "numbers that turn the answer do so within their ends": all(
            one["low"] <= one["flips_at"] <= one["high"] for one in found["tornado"] if one["flips_at"] is not None
        ),
        "the best is as fast as itself": all(
            math.isclose(row["over_best"]["value"], best_s / row["tpot_s"], rel_tol=1e-6) for row in ranking
        ),
        "what was given is not asked for": not (given and "measure the acceptance" in found["verdict"]),
        "recommended is the fastest that can be run": (speed is None) == (not offered)
        and (speed is None or math.isclose(speed["value"], offered[0]["speedup"], rel_tol=1e-6)),
        "exits are to be trained unless they are there": "--trained-exits" not in words or offered == drafting,
    }


def require_rising(words: list[str], found: dict[str, Any]) -> None:
    """More acceptance is never less speed-up, and a device more and more bandwidth are never a longer time."""
    if "--acceptance" in words and (text := words[words.index("--acceptance") + 1]).replace(".", "").isdigit():
        require_no_slower(found, answer([*words, "--acceptance", f"{(1 + float(text)) / 2:g}"]))
    if "--add" in words:
        place = words.index("--add")
        fewer = [*words[:place], *words[place + 2 :]]
        if (without := answer(fewer, refused_since="nowhere")) is not None:  # its memory may be needed
            require_no_slower(without, found)
    if "--set" not in words and "--platform" in words:
        platform = load_platform(words[words.index("--platform") + 1])
        shared = {device for pool in platform.memory_pools.values() for device in pool.devices}
        rates = [f"{pool}.bytes_per_s" for pool in platform.memory_pools]
        rates += [
            f"{device}.memory_bytes_per_s"
            for device, sheet in platform.devices.items()
            if device not in shared and sheet.memory_bytes_per_s is not None
        ]
        require_no_slower(found, answer([*words, *(word for rate in rates for word in ("--set", f"{rate}=+30%"))]))


def require_no_slower(before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    assert before is not None
    assert after is not None
    in_turn = "autoregressive", "speculative"
    for methods, loss in ((in_turn, ROUNDING), ((*in_turn, "mirror"), A_STEP)):
        then, now = (
            min(row["tpot_s"] for row in one["ranking"] if row["method"] in methods) for one in (before, after)
        )
        assert now <= then * (1 + loss)
