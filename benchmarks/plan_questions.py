"""Random questions for `mirrorsd plan`: each must be answered by its laws, or refused in a few lines.

    nice -n 19 python benchmarks/plan_questions.py

10,000 questions of `_plan_questions/`: shapes that ship and others, platforms that ship and others, `--set`, any
acceptance, contexts and batches. Of every tenth it is asked too what more acceptance and more bandwidth bring.
Interrupted, the same command goes on. Writes benchmarks/results/plan-questions.json: how many were answered and
refused, and the seed of every one that ended otherwise, to be asked again with `--seed SEED`.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import _common

ROOT: Final = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # the tests are no part of what is installed

from benchmarks._plan_questions.outcome import UntoldError, outcome  # noqa: E402

LIMIT_S: Final = 60.0
"""Of the processor, for a question with what is asked after it."""
BATCH: Final = 100


def main() -> None:
    """Ask the questions that are left, and write the result after every batch."""
    parser = _common.arguments(__doc__)
    parser.add_argument("--questions", type=int, default=10_000, help="in all")
    parser.add_argument("--seed", type=int, help="ask one question again")
    parser.add_argument("--output", type=Path, default=_common.RESULTS / "plan-questions.json")
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, _refuse_longer)
    if options.seed is not None:
        print(_told(options.seed))
        return
    result: dict[str, Any] = {
        "measured": {},
        "questions": 0,
        "outcomes": {},
        "failures": [],
        "limit_s": LIMIT_S,
        "longest_s": 0.0,
    }
    if options.output.is_file():
        result = _common.read_result(options.output)
    while result["questions"] < options.questions:
        for seed in range(result["questions"], min(result["questions"] + BATCH, options.questions)):
            _keep(result, seed, _told)
        _common.write_result(options.output, result)
        print(result["questions"], "of", options.questions, result["outcomes"], flush=True)


def _keep(result: dict[str, Any], seed: int, told: Callable[[int], str]) -> None:
    start_s = time.process_time()
    name, _, text = told(seed).partition(": ")
    result["longest_s"] = max(result["longest_s"], round(time.process_time() - start_s, 1))
    result["outcomes"][name] = result["outcomes"].get(name, 0) + 1
    result["questions"] = seed + 1
    if text:
        result["failures"].append({"seed": seed, "what": text})


def _told(seed: int) -> str:
    """What became of a question."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return outcome(seed, Path(folder))
    except UntoldError as error:
        return f"untold: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _refuse_longer(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"more than {LIMIT_S:g} s of the processor")


if __name__ == "__main__":
    main()
