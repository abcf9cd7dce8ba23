"""Damaged files of every kind, read case by case: each must end in a clean error or in an answer that is finite.

    nice -n 19 python benchmarks/mutated_files.py

10,000 cases of `_mutated_files/`, over all of its kinds (`--cases` for more); every case has 10 seconds of the
processor and 1 GB of its own. Interrupted, the same command goes on, unless what it tests has changed since. Writes
benchmarks/results/mutated-files.json: counts by kind and outcome, and the seed of every case that ended otherwise, to
be played again with `--kind KIND --seed SEED`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import _common

ROOT: Final = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # the tests are no part of what is installed

import torch  # noqa: E402

from benchmarks._mutated_files.kinds import KINDS  # noqa: E402
from benchmarks._mutated_files.outcome import UntoldError, make_sound, outcome  # noqa: E402

LIMIT_S: Final = 10.0
LIMIT_BYTES: Final = 1 << 30
BATCH: Final = 250
SLOW_SHARE: Final = 10
"""A slow kind has one case for so many of the others."""
PACKAGES: Final = ("numpy", "pydantic", "PyYAML", "safetensors", "torch", "tokenizers")
TESTED: Final = ("calibrate", "decoding", "hwprofiles", "mirrorsd", "planner", "runtime", "sim", "training")


def main() -> None:
    """Run the cases that are left, and write the result after every batch."""
    parser = _common.arguments(__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in all")
    parser.add_argument("--kind", choices=KINDS, help="play one case again, with --seed")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output", type=Path, default=_common.RESULTS / "mutated-files.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.kind is not None:
            sound = Path(folder) / "sound"
            print(outcome(options.kind, sound, make_sound(options.kind, sound), Path(folder) / "case", options.seed))
            return
        result = _begun(options.output)
        wanted = _shares(options.cases)
        for kind, count in wanted.items():
            _run(kind, count, Path(folder), result, options.output)
    print(options.output.read_text(encoding="utf-8"))


def _shares(num_cases: int) -> dict[str, int]:
    """Cases of every kind."""
    weights = {name: 1 if kind.is_slow else SLOW_SHARE for name, kind in KINDS.items()}
    total = sum(weights.values())
    return {name: -(-num_cases * weight // total) for name, weight in weights.items()}


def _begun(path: Path) -> dict[str, Any]:
    """The result so far, if it is of what is tested now; else an empty one."""
    tested = {"sources_sha256": _fingerprint(), "python": sys.version.split()[0]}
    tested |= {name: version(name) for name in PACKAGES}
    limits = {"seconds": LIMIT_S, "bytes": LIMIT_BYTES}
    found = _common.read_result(path) if path.is_file() else {}
    if found.get("tested") == tested and found.get("limits") == limits:
        return found
    return {"measured": {}, "tested": tested, "limits": limits, "kinds": {}}


def _fingerprint() -> str:
    """Of all sources that are tested, and of the mutations."""
    digest = hashlib.sha256()
    folders = [ROOT / name for name in (*TESTED, "benchmarks/_mutated_files")]
    for path in [path for folder in folders for path in sorted(folder.rglob("*.py"))]:
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _run(kind: str, count: int, folder: Path, result: dict[str, Any], output: Path) -> None:
    """The cases of a kind that are left."""
    entry = result["kinds"].setdefault(kind, {"cases": 0, "seconds": 0.0, "outcomes": {}, "failures": []})
    if entry["cases"] >= count:
        return
    sound = folder / kind / "sound"
    names = make_sound(kind, sound)
    while entry["cases"] < count:
        start_s, start = time.monotonic(), entry["cases"]
        for seed, told in _batch(kind, sound, names, range(start, min(start + BATCH, count))):
            name, _, text = told.partition(": ")
            entry["outcomes"][name] = entry["outcomes"].get(name, 0) + 1
            entry["cases"] = seed + 1
            if text or name in ("hung", "died"):
                entry["failures"].append({"seed": seed, "what": told})
        entry["seconds"] += round(time.monotonic() - start_s, 1)
        _common.write_result(output, result)
        print(kind, entry["cases"], "of", count, entry["outcomes"], flush=True)


def _batch(kind: str, sound: Path, names: list[str], seeds: range) -> Iterator[tuple[int, str]]:
    """Seed and outcome of every case: in a process of its own, and in another one after a case that ended it."""
    context = multiprocessing.get_context("fork")
    left = seeds
    while left:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(kind, sound, names, left, theirs))
        process.start()
        theirs.close()
        for seed in left:
            left = left[1:]
            try:
                yield seed, str(ours.recv())
            except EOFError:
                process.join()
                yield seed, "hung" if process.exitcode == -signal.SIGPROF else "died"
                break
        process.join()
        ours.close()


def _work(kind: str, sound: Path, names: list[str], seeds: range, end: Connection) -> None:
    """Play cases, and tell the outcome of each."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    scratch = sound.with_name("case")
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # nobody handles it: it ends the process
        try:
            end.send(outcome(kind, sound, names, scratch, seed))
        except UntoldError as error:
            end.send(f"untold: {error}")
        except MemoryError:
            end.send("memory: more than its limit")


if __name__ == "__main__":
    main()
