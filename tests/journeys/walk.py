"""Walks printed commands as a user does, in a folder of the user's, in their quickest form."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import chdir
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from decoding.schedule import Schedule, load_schedule, save_schedule
from hwprofiles.host import lanes_of
from tests.journeys import quick
from tests.journeys.kept_lanes import KeptLanes
from tests.journeys.printed import ROOT, Printed, is_mention, is_understood, of_a_report, of_an_output, verb_of
from tests.mirrorsd.cli.calls import call
from training.recipe import shipped_recipes

MIRRORSD = Path(sys.executable).with_name("mirrorsd")
MINE, LAYERS = "models/mine", 12
"""Where the user has a model, and its layers, as many as in the page on training; shipped recipes are for 30."""
FILLED = {
    "FOLDER": MINE,
    "NAME": "lunar-lake",
    "FILE": "my-file.yaml",
    "RECIPE.yaml": "my-draft.yaml",
    "TARGET": "smollm2-135m-instruct",
    "DRAFT": "smollm2-135m-draft4",
}
"""What a user puts in the place of a word in capitals."""
REACH = {"--max-new-tokens": "6", "--max-window": "2"}
QUICK = {
    ("demo",): REACH | {"--minutes": "0.5", "--max-prompts": "2", "--seed": "4"},
    ("calibrate",): REACH | {"--minutes": "0.1", "--lanes": lanes_of("openvino:CPU")[0].name},
    ("record",): REACH | {"--per-category": "1"},
    ("run",): {"--max-new-tokens": "24"},
    ("train", "generate"): {"--target": MINE, "--recipe": "smollm2-135m-selfgen"},
    ("train", "draft"): {"--target": MINE, "--recipe": "smollm2-135m-draft4"},
    ("train", "exits"): {"--target": MINE, "--recipe": "smollm2-135m-exits"},
    ("train", "recipe"): {"--target": MINE},
}
"""What makes a verb quick, where its command does not say otherwise; a demo calibrates all lanes, of short prompts."""
PROCESSES = ("demo", "run")
"""Verbs that run as the installed command, in a process of their own that starts lanes; others run in this one.
So do further ones of the same verb, on lanes that stay: starting them is most of what they take."""
LONGEST = ("demo", "validate")
"""Verbs that take longest: one for every set of options."""
_MAIN = "mirrorsd.cli.main()"
_SHORT = {
    "num_conversations": 6,
    "batch_size": 8,
    "max_user_tokens": 8,
    "max_answer_tokens": 12,
    "vocab_size": 512,
    "num_held_out": 2,
}
_OF_LAYERS = ("source_layer", "source_layers", "exit_features", "exit_layers", "feature_layers")
_HEADS = "prompt-lookup,smollm2-135m-eagle3"
"""Those of the embedded model's demo."""
_OWN = ("--target", FILLED["TARGET"], "--drafter", FILLED["DRAFT"])
"""Models that a demo takes anyway: one that names them is the same demo, which takes two minutes of a core."""
_OUTPUTS = ("--out", "--schedule-out", "--profile-out", "--acceptance-out", "--trace", "--json", "--states")
_OWN_FOLDER = {"demo": "out/demo", "validate": "out/validate"}
_FILE = re.compile(r"\.(yaml|npz|json|jsonl|gz|html)$|^out/|^my-")
_HUB = re.compile(r"^[\w-]+/[\w.-]+$")


@dataclass(frozen=True)
class Done:
    """A command that was run: its words, what it wrote, and the commands that it printed."""

    words: tuple[str, ...]
    stdout: str
    stderr: str
    printed: tuple[Printed, ...]


@dataclass
class Walk:
    """A user's folder, and all that was done there; nothing is done twice with the same files."""

    folder: Path
    processes: tuple[str, ...] = PROCESSES
    lanes: KeptLanes | None = field(default_factory=KeptLanes)
    done: dict[tuple[str, ...], Done] = field(default_factory=dict)
    followed: set[Done] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        """In which this very code is what is installed."""
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def __call__(self, *words: object) -> Done:
        """Run a command as it is given."""
        words = tuple(map(str, words))
        known_as = (*_in_order(words), *self._contents(words))
        if known_as in self.done:
            return self.done[known_as]
        before = time.time()
        exit_code, stdout, stderr = self._in_a_process(words) if self._is_apart(words[1]) else self._here(words)
        assert exit_code == 0, f"{shlex.join(words)}: exit status {exit_code}\n{stdout}{stderr}"
        where = f"printed by {shlex.join(words)}"
        printed = of_an_output(stdout, where) + of_an_output(stderr, where)
        pages = [page for page in self.folder.rglob("*.html") if page.stat().st_mtime >= before - 1]
        printed += [command for page in pages for command in of_a_report(page)]
        self.done[known_as] = Done(words, stdout, stderr, tuple(printed))
        return self.done[known_as]

    def _is_apart(self, verb: str) -> bool:
        return verb in self.processes and all(one.words[1] != verb for one in self.done.values())

    def _in_a_process(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        made = [f"quick.{function.__name__}(*{arguments})" for function, *arguments in _made_quick(words)]
        code = "\n".join(["import mirrorsd.cli", "from tests.journeys import quick", *made, _MAIN])
        command = [sys.executable, "-c", code] if words[1] == "demo" else [MIRRORSD]
        ran = subprocess.run(
            [*command, *words[1:]], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return ran.returncode, ran.stdout, ran.stderr

    def _here(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        with chdir(self.folder), pytest.MonkeyPatch.context() as patch:
            for function, *arguments in [*_made_quick(words), (quick.few_fits,)]:
                function(*arguments, patch.setattr)
            if self.lanes is not None:
                patch.setattr("runtime.engine.LaneSet", self.lanes.lane_set)
            ran = call(*words[1:])
        return ran.exit_code, ran.stdout, ran.stderr

    def quickly(self, printed: Printed) -> Done:
        """Run a command as it is printed, in its quickest form; the text that it ends with is checked."""
        assert is_understood(printed.words), f"{printed}: not a command that can be run"
        words = self._quick(printed.words)
        alike = [one for one in self.done.values() if words[1] in LONGEST and _options(one.words) == _options(words)]
        done = alike[0] if alike else self(*words)
        if verb_of(done.words)[0] == ("run",):
            self._check_text(done)
        return done

    def follow(self, done: Done) -> list[Done]:
        """Run all that a command printed, and what that prints at once: another one may write to the same folder."""
        self.followed.add(done)
        runs = []
        for printed in done.printed:
            if is_mention(printed.words) and not is_understood(printed.words):
                continue
            runs.append(self.quickly(printed))
            if runs[-1] not in self.followed:
                runs += self.follow(runs[-1])
        return runs

    def _contents(self, words: tuple[str, ...]) -> list[str]:
        """Digests of the files that a command reads: the same words read another one after another demo."""
        files = [self.folder / path for path in inputs(words)]
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]

    def _quick(self, words: tuple[str, ...]) -> tuple[str, ...]:
        words = tuple(FILLED.get(word, word) for word in words)
        path, _ = verb_of(words)
        if path == ("demo",) and words[2:] == _OWN:
            words = words[:2]
        added = {name: value for name, value in QUICK.get(path, {}).items() if name not in words}
        if "--device" in words:
            added.pop("--lanes", None)
        if path == ("demo",) and "--target" not in words and ("--device" in words or inputs(words)):
            added["--target"] = MINE  # that quick training was for, and quick on lanes of torch
        elif path == ("demo",) and not {"--target", "--heads"} & set(words):
            added["--heads"] = _HEADS
        words += tuple(word for option in added.items() for word in option)
        if path[:1] == ("train",):
            place = words.index("--recipe") + 1 if "--recipe" in words else 3
            words = (*words[:place], self._short_recipe(words[place]), *words[place + 1 :])
        return words

    def _short_recipe(self, name: str) -> str:
        """The same recipe, but for a few tokens, and layers that the user's model has."""
        shipped = shipped_recipes()
        path = shipped.get(name) or self.folder / name
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        recipe |= {key: value for key, value in _SHORT.items() if key in recipe or key in _needed(recipe)}
        if name in shipped:
            recipe |= {key: _nearer(value) for key, value in recipe.items() if key in _OF_LAYERS}
        if "optimisation" in recipe:
            recipe["optimisation"] |= {"num_tokens": 24, "conversations_per_step": 2}
        short = self.folder / "short" / f"{path.stem}.yaml"
        short.parent.mkdir(exist_ok=True)
        short.write_text(yaml.safe_dump(recipe))
        return str(short.relative_to(self.folder))

    def _check_text(self, run: Done) -> None:
        """What was run is plain decoding's text; of trees, which may part from it in near ties, it is there."""
        place = run.words.index("--schedule") + 1
        schedule = load_schedule(self.folder / run.words[place])
        assert run.stdout.strip(), shlex.join(run.words)
        if not schedule.is_tree:
            plain = f"plain on {schedule.target_lane}.yaml"
            save_schedule(Schedule(method="autoregressive", target_lane=schedule.target_lane), self.folder / plain)
            words = list(run.words)
            words[place] = plain
            if "--json" in words:  # what the page goes on with is the run's own
                words[words.index("--json") : words.index("--json") + 2] = []
            expected = self(*words)
            assert run.stdout == expected.stdout, shlex.join(run.words)


def _in_order(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words with their options by name; those of one name stay as they are."""
    options = [place for place, word in enumerate(words) if word.startswith("--")]
    parts = [words[start:stop] for start, stop in pairwise([*options, len(words)])]
    return words[: min(options, default=len(words))] + tuple(
        chain.from_iterable(sorted(parts, key=lambda part: part[0]))
    )


def _made_quick(words: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Functions, with arguments, that make a command quick where no option does.

    Exits need two lanes, other drafters of one's own one.
    """
    made: list[tuple[Any, ...]] = [(quick.few_sizes,)]
    if words[1] == "demo":
        made.append((quick.few_lanes, 1 if MINE in words and "--exits" not in words else 2))
    elif words[1] == "calibrate" and "--quick" not in words:
        made.append((quick.lookup_alone,))
    elif words[1] == "record":
        made.append((quick.few_prompts,))
    return made


def _options(words: tuple[str, ...]) -> tuple[str, list[str]]:
    return words[1], sorted(word for word in words if word.startswith("--") and word != "--json")


def _nearer(layers: Any) -> Any:
    """The layers as far up in the user's model as they are in one of 30; the first two stay."""
    return [*map(_nearer, layers)] if isinstance(layers, list) else max(min(layers, 2), layers * LAYERS // 30)


def _needed(recipe: dict) -> tuple[str, ...]:
    return ("num_held_out", "vocab_size") if "optimisation" in recipe else ()


def inputs(words: tuple[str, ...]) -> list[str]:
    """Files of the user's that a command reads."""
    values = [word for before, word in pairwise(words) if before not in _OUTPUTS and _FILE.search(word)]
    return [value for value in values if " " not in value]


def outputs(words: tuple[str, ...]) -> list[str]:
    """Files and folders that a command writes."""
    named = [word for before, word in pairwise(words) if before in _OUTPUTS]
    own = [folder for verb, folder in _OWN_FOLDER.items() if words[1:2] == (verb,) and "--out" not in words]
    return named + own


def why_not(printed: Printed) -> str | None:
    """Why a command cannot be walked here; None where it can."""
    words = printed.words
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets, f"{printed}: the Makefile has {', '.join(targets)}"
        return "installs the package, for which it needs a network"
    if any(_HUB.match(word) and word != MINE and not _FILE.search(word) for word in words[1:]):
        return "names a model of the hub, for which it needs a network"
    return None
