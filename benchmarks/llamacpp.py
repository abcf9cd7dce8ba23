"""How well a real engine is predicted from what its own benchmarks say: llama.cpp on this machine, imported.

    python benchmarks/llamacpp.py --binaries BUILD/bin --gguf SmolLM2-135M-Instruct.Q4_1.gguf

The default model and its draft are written as GGUF files (`_gguf_export`). llama-batched-bench times the target by
rows, llama-bench the draft, and one server that drafts the deepest window says how often each place is accepted, over
the same prompts. `mirrorsd import` makes a profile and an acceptance of that, and nothing else is known when plain
decoding and windows of 1 to 6 tokens are predicted. Then servers of all windows answer the prompts in turn; what the
predictions stand on is timed again in every round, since the machine may be another one by then, and a round's speeds
are not looked at by any prediction. Medians over rounds are compared.

On a busy machine --clock cpu has all of llama.cpp's tools tell the time that their process had a core instead of what
the wall says: with one thread that is the time of a quiet machine, but for caches and memory that others use too.

Everything is kept in --work as it comes: a run that was stopped goes on. Writes benchmarks/results/llamacpp.json. Needs
llama.cpp's tools (llama-bench, llama-batched-bench, llama-server), built from source, and the GGUF file of the wheel
that the default model comes from.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

from _common import EMBEDDED, RESULTS, arguments, facts, in_turn, markdown_table, quartiles, read_result, write_result
from _gguf_export import write_draft, write_target

from calibrate.prompts import EncodedPrompt, bundled_prompts
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from mirrorsd.model_pair import find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.simulation import predict
from planner.imported.engine_profile import LANE
from sim.acceptance.assumed import parse_acceptance
from sim.acceptance.rates import Texts

RESULT = RESULTS / "llamacpp.json"
DRAFT: Final = "smollm2-135m-draft4"
_KINDS: Final = ("predicted_s", "measured_s")
DEEPEST: Final = 6
WINDOWS: Final = (0, 1, 2, 3, 4, 5, DEEPEST)
"""0 is plain decoding."""
_ROWS: Final = ",".join(map(str, range(1, DEEPEST + 2)))
_CONTEXTS: Final = "32,256"
"""Between which all texts lie."""
_STARTS_S: Final = 60.0
_CPU_CLOCK: Final = """
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static int64_t spent_ns(void) {
    struct timespec at;
    syscall(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}
int64_t ggml_time_us(void) { return spent_ns() / 1000; }
#ifdef EVERY_CLOCK
int clock_gettime(clockid_t which, struct timespec *at) {
    return syscall(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, at);
}
#endif
"""
"""Preloaded: llama-bench reads the machine's clock, the others ggml's; a server's waiting needs the true one."""


def main() -> None:
    """Measure, predict and write the result file."""
    parser = arguments(
        __doc__,
        out=RESULT,
        rounds=6,
        binaries=([Path], "folder of llama-server and its like"),
        gguf=([Path], "the file that the default model came in"),
        draft_stored=("Q4_0", "how the draft's weights are stored"),
        threads=1,
        every=(8, "take one prompt of so many"),
        max_new_tokens=48,
        work=(Path("out/llamacpp"), "where everything is kept as it comes"),
    )
    parser.add_argument("--stored", nargs="+", default=["BF16", "Q4_0"], help="how the target's weights are stored")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: of the process, if busy")
    options = parser.parse_args()
    pair = find_pair(EMBEDDED, drafter=DRAFT, heads=())
    prompts = encode(bundled_prompts(), pair.target_folder)[:: options.every]
    content: dict[str, Any] = {
        **facts(pair),
        "engine": _version(options.binaries),
        "threads": options.threads,
        "clock": options.clock,
        "draft_stored": options.draft_stored,
        "prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "num_rounds": options.rounds,
        "acceptance": f"by position, of one run of the server that drafts {DEEPEST}, over the same prompts",
        "targets": {},
    }
    for stored in options.stored:
        work = options.work / stored
        work.mkdir(parents=True, exist_ok=True)
        content["targets"][stored] = _Engine(options, work, stored, prompts).compared()
    errors = [abs(row["error"]) for target in content["targets"].values() for row in target["rows"]]
    content |= {"median_abs_error": median(errors), "worst_abs_error": max(errors)}
    print(json.dumps(content["targets"], indent=1))
    print(f"median |error| {100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %")
    write_result(options.out, content)


def sections() -> dict[str, str]:
    """Return the section of docs/engines.md that shows the committed result."""
    found = read_result(RESULT)
    times = "time of its processes, on a busy machine" if found["clock"] == "cpu" else "on the wall"
    cores = f"{found['threads']} of {len(found['platform']['cores'])} cores, {found['platform']['cpu_model']}"
    told = f"{found['engine']}; {cores}; {found['num_rounds']} rounds"
    header = ("drafted", *(f"{stored}, {kind[:-2]}" for stored, kind in product(found["targets"], _KINDS)))
    rows = zip(*(target["rows"] for target in found["targets"].values()), strict=True)
    lines = [
        (str(own[0]["window"] or "plain"), *(f"{1e3 * one[kind]:.1f}" for one in own for kind in _KINDS))
        for own in rows
    ]
    off, worst = (f"{100 * found[kind]:.1f} %" for kind in ("median_abs_error", "worst_abs_error"))
    return {
        "llamacpp": f"Milliseconds per token ({told}; {times}):\n\n"
        + markdown_table(header, lines)
        + f"\nOff by {off} in the median, by {worst} at most; acceptance is {found['acceptance']}.\n"
    }


class _Engine:
    """One target with the draft: its files, its pages and its servers."""

    def __init__(self, options: argparse.Namespace, work: Path, stored: str, prompts: Sequence[EncodedPrompt]) -> None:
        self.options, self.work, self.prompts = options, work, prompts
        self.target, self.draft = work / "target.gguf", work / "draft.gguf"
        if not self.draft.exists():
            write_target(options.gguf, self.target, stored)
            write_draft(options.gguf, self.draft, options.draft_stored, DRAFT)
        self.pages = {name: work / name for name in ("target.jsonl", "draft.jsonl", "metrics.txt")}
        self.runs = work / "runs.jsonl"
        self.clocks = _clocks(work) if options.clock == "cpu" else {}

    def compared(self) -> dict[str, Any]:
        """Return predicted and measured times of every window, and what the engine was asked before."""
        done = len(self.runs.read_text().splitlines()) if self.runs.exists() else 0
        if done < self.options.rounds:
            self._measure(done)
        imported = self._imported()
        measured = [json.loads(line) for line in self.runs.read_text().splitlines()][: self.options.rounds]
        rows = [row_of(window, self._predicted_s(window), measured) for window in WINDOWS]
        return {"rows": rows, "median_abs_error": median(abs(row["error"]) for row in rows), **imported}

    def _measure(self, done: int) -> None:
        """Time benches and servers in rounds; every other round goes backwards."""
        with ExitStack() as stack:
            ports = {window: stack.enter_context(self._server(window)) for window in WINDOWS}
            for port in ports.values():
                _answers(port, self.prompts[:1], 8)
            if not self.pages["metrics.txt"].exists():
                _answers(ports[DEEPEST], self.prompts, self.options.max_new_tokens)
                self.pages["metrics.txt"].write_text(_get(ports[DEEPEST], "/metrics"))
            for index in range(done, self.options.rounds):
                started_s = time.monotonic()
                found = {}
                for part in in_turn((None, *WINDOWS), index):
                    if part is None:
                        self._bench()
                    else:
                        found[part] = _answers(ports[part], self.prompts, self.options.max_new_tokens)
                with self.runs.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(f"{self.work.name}: round {index + 1} in {time.monotonic() - started_s:.0f} s", flush=True)

    def _bench(self) -> None:
        """Add one bench of the target and one of the draft to their pages."""
        threads = ["-t", str(self.options.threads), "-fa", "on"]
        of_rows = ["-npp", _CONTEXTS, "-ntg", "16", "-npl", _ROWS, "-pps", "--output-format", "jsonl", "-c", "4096"]
        of_draft = ["-p", _ROWS, "-n", "16", "-d", _CONTEXTS, "-r", "3", "-o", "jsonl"]
        commands = {
            "target.jsonl": ["llama-batched-bench", "-m", str(self.target), *threads, *of_rows],
            "draft.jsonl": ["llama-bench", "-m", str(self.draft), *threads, *of_draft],
        }
        for page, (tool, *words) in commands.items():
            said = subprocess.run(
                [str(self.options.binaries / tool), *words], env=self._around("bench"), capture_output=True, check=True
            )
            with self.pages[page].open("ab") as file:
                file.write(said.stdout)

    @contextmanager
    def _server(self, window: int) -> Iterator[int]:
        """A server that drafts so many tokens, on a port of its own."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        threads = str(self.options.threads)
        command = [str(self.options.binaries / "llama-server"), "-m", str(self.target), "-t", threads, "-tb", threads]
        command += ["-c", "1024", "-np", "1", "-fa", "on", "--cache-ram", "0", "--metrics", "--port", str(port)]
        if window:
            command += ["-md", str(self.draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(window)]
            command += ["-td", threads, "-tbd", threads]
        with (self.work / f"server-{window}.log").open("w") as log:
            process = subprocess.Popen(command, env=self._around("server"), stdout=log, stderr=log)
        try:
            _wait_for(process, port)
            yield port
        finally:
            process.terminate()
            process.wait()

    def _around(self, kind: str) -> dict[str, str]:
        clock = {"LD_PRELOAD": str(self.clocks[kind])} if self.clocks else {}
        return os.environ | {"LD_LIBRARY_PATH": str(self.options.binaries)} | clock

    def _imported(self) -> dict[str, Any]:
        """Return what `mirrorsd import` makes of the pages; it writes a profile and an acceptance next to them."""
        outputs = [
            "--profile-out",
            str(self.work / "engine.yaml"),
            "--acceptance-out",
            str(self.work / "accepted.yaml"),
        ]
        pages = [str(page) for page in self.pages.values()]
        command = [sys.executable, "-m", "mirrorsd", "import", *pages, *outputs, "--json"]
        said = subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parents[1])
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def _predicted_s(self, window: int) -> float:
        profile = load_profile(self.work / "engine.yaml")
        length = round(sum(len(prompt.ids) for prompt in self.prompts) / len(self.prompts))
        texts = Texts(num_texts=256, num_tokens=self.options.max_new_tokens, prompt_length=length)
        schedule = Schedule(method="autoregressive", target_lane=LANE)
        if window:
            schedule = Schedule(
                method="speculative",
                target_lane=LANE,
                draft_lane=LANE,
                num_speculative_tokens=window,
                drafter=profile.drafter,
            )
        return predict(schedule, profile, parse_acceptance(str(self.work / "accepted.yaml"), texts=texts)).tpot_s


def _clocks(work: Path) -> dict[str, Path]:
    """Return libraries that make benches, and servers, tell the time of their process."""
    source, found = work / "clock.c", {}
    source.write_text(_CPU_CLOCK)
    for kind, flags in (("bench", ["-DEVERY_CLOCK"]), ("server", [])):
        found[kind] = (work / f"{kind}-clock.so").resolve()
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", *flags, str(source), "-o", str(found[kind])], check=True)  # noqa: S607
    return found


def row_of(window: int, predicted_s: float, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a window predicted, measured, and compared.

    What is compared is the sum over prompts of each one's median over rounds; quartiles are of whole rounds.
    """
    rounds = [one[str(window)] for one in measured]
    by_prompt = zip(*(one["seconds"] for one in rounds), strict=True)
    time_s = sum(map(median, by_prompt)) / rounds[0]["tokens"]
    return {
        "window": window,
        "predicted_s": predicted_s,
        "measured_s": time_s,
        "rounds_s": quartiles([sum(one["seconds"]) / one["tokens"] for one in rounds]),
        "error": predicted_s / time_s - 1,
        "accepted": rounds[0]["accepted"] / rounds[0]["drafted"] if window else None,
    }


def _answers(port: int, prompts: Sequence[EncodedPrompt], num_tokens: int) -> dict[str, Any]:
    """Return seconds of every prompt's tokens after its first one, how many those are, and what was accepted."""
    fixed = {"n_predict": num_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    timings = [_post(port, {"prompt": list(prompt.ids), **fixed})["timings"] for prompt in prompts]
    return {
        "seconds": [one["predicted_ms"] * 1e-3 for one in timings],
        "tokens": sum(one["predicted_n"] - 1 for one in timings),
        "drafted": sum(one.get("draft_n", 0) for one in timings),
        "accepted": sum(one.get("draft_n_accepted", 0) for one in timings),
    }


def _post(port: int, content: Mapping[str, Any]) -> Any:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=600) as said:  # noqa: S310
        return json.load(said)


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as said:
        return str(said.read().decode())


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    end_s = time.monotonic() + _STARTS_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            _get(port, "/health")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"the server on port {port} does not answer (exit code {process.poll()}); its log says why")


def _version(binaries: Path) -> str:
    environment = os.environ | {"LD_LIBRARY_PATH": str(binaries)}
    said = subprocess.run(
        [str(binaries / "llama-server"), "--version"], env=environment, capture_output=True, check=True
    )
    lines = (said.stdout + said.stderr).decode().splitlines()
    return "llama.cpp, " + "; ".join(line for line in lines if line.startswith(("version", "built")))


if __name__ == "__main__":
    main()
