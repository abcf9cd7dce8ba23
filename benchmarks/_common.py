"""The harness of all benchmarks: arguments, rounds in which contenders take turns, machine facts, results and pages.

Every result has the entry `measured`, the hashes of the weights that it is about; see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, TypeVar

# scripts measure the tree that they are in, whatever is installed
sys.path.insert(0, str(Path(__file__).parents[1]))

from calibrate.prompts import Prompt, bundled_prompts, load_prompts
from decoding.record import FORMAT
from decoding.yaml_file import write_atomically
from hwprofiles.host import describe_host
from hwprofiles.profile import Profile
from mirrorsd.compare.numbers import json_text
from mirrorsd.model_pair import ModelPair
from runtime.drafters.registry import SHIPPED_FOLDER

RESULTS = Path(__file__).parent / "results"
K, T = TypeVar("K"), TypeVar("T")
EMBEDDED = "smollm2-135m-instruct"
_SOURCE = "mirrorsd.json"
"""In the folder of a model that was converted: what from, and by which conversion."""
_WEIGHTS = ("config.json", "*.safetensors")


def arguments(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring, with an option for every keyword.

    The value is the default, or a pair of the default and a help text. The type is that of the default; where there is
    none, the type stands in its place. `False` is a flag, and a default in a list makes an option that is needed.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {"out": "the result file", "rounds": "that count, after those that warm up"}
    for name, value in options.items():
        default, told = value if isinstance(value, tuple) else (value, known.get(name))
        required = isinstance(default, list)
        default = default[0] if isinstance(default, list) else default
        kind: Any = default if isinstance(default, type) else type(default)
        kind = Path if issubclass(kind, Path) else at_least_two if name == "rounds" else kind
        settings: dict[str, Any] = {"type": kind, "default": None if isinstance(default, type) else default}
        settings = {"action": "store_true"} if default is False else settings | {"required": required}
        parser.add_argument(f"--{name.replace('_', '-')}", help=told, **settings)
    return parser


def in_rounds(
    contenders: Sequence[K], measure: Callable[[K, int], T], count: int, *, warm_up: int = 2
) -> dict[K, list[T]]:
    """Return what is measured of every contender in each of `count` rounds, in which all take turns.

    `measure` is given a contender and the round's index. The first rounds do not count: models load and graphs compile
    in them.
    """
    found: dict[K, list[T]] = {name: [] for name in contenders}
    for index in range(warm_up + count):
        start_s = time.monotonic()
        for name in in_turn(contenders, index):
            value = measure(name, index)
            if index >= warm_up:
                found[name].append(value)
        print(f"round {index + 1} of {warm_up + count}: {time.monotonic() - start_s:.0f} s", flush=True)
    return found


def in_turn(contenders: Iterable[T], index: int) -> list[T]:
    """Return the order of a round, backwards in every second one, so that a drift of the machine meets all alike."""
    return list(contenders)[:: -1 if index % 2 else 1]


def facts(pair: ModelPair) -> dict[str, Any]:
    """Return the machine and the weights that a result is about."""
    return {"platform": describe_host(), "measured": measured_pair(pair)}


def at_least_two(text: str) -> int:
    """A number of rounds that has quartiles."""
    count = int(text)
    if count < 2:
        msg = f"{count} rounds have no spread: at least 2 have"
        raise argparse.ArgumentTypeError(msg)
    return count


def prompt_arguments(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that `chosen_prompts` reads, and others."""
    return arguments(
        doc,
        threads=(1, "threads of torch"),
        prompts=(Path, "Spec-Bench's question.jsonl, or rows with a prompt"),
        max_new_tokens=64,
        every=(1, "take one prompt of so many, to be done sooner"),
        **options,
    )


def chosen_prompts(options: argparse.Namespace) -> tuple[str, Sequence[Prompt]]:
    """The name of the prompts, `shipped` or their file's stem, and every so many of them."""
    if options.prompts is None:
        return "shipped", bundled_prompts()[:: options.every]
    return options.prompts.stem, load_prompts(options.prompts)[:: options.every]


def read_result(path: Path) -> dict[str, Any]:
    """A result file."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def print_result(path: Path, content: object) -> None:
    """Write a result file and print it."""
    write_result(path, content)
    print(path.read_text(encoding="utf-8"))


def write_result(path: Path, content: object) -> None:
    """Write a result file at once or not at all: strict JSON, in which what is no number is null."""
    write_atomically(path, json_text(json.loads(json.dumps(content, default=str))))


def measured(*folders: Path) -> dict[str, str]:
    """SHA-256 of the weights in these folders, by file; of a converted model that of its source, by folder.

    Files that ship with the package begin with `shipped/`: they are looked up again whenever tests run.
    """
    return {name: digest for folder in folders for name, digest in _hashes(folder.resolve())}


def measured_pair(pair: ModelPair) -> dict[str, str]:
    """The same of everything that works together in a pair."""
    drafting = [one.folder for one in (pair.drafter, pair.exits, *pair.heads) if one is not None]
    return measured(pair.target_folder, *drafting)


def formats() -> dict[str, str]:
    """Formats of profiles and records, for results that measure what reads them."""
    return {"profile": Profile.model_fields["format"].default, "record": FORMAT}


def source_hash(source: Mapping[str, Any]) -> str:
    """SHA-256 of which file a model was converted from and by which conversion, as its cached folder says."""
    identity = [source["gguf_sha256"], source["conversion"]]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def out_of_date(result: Mapping[str, Any], today: Mapping[str, str]) -> list[str]:
    """What a result is about that is another today, by name; `measured` if it does not say.

    Args:
        result: with `measured`, and `formats` if it depends on them.
        today: the hashes of everything that ships, and of the default model. A result may be about weights that do
            not ship; those are not looked up.
    """
    if "measured" not in result:
        return ["measured"]
    weights = result["measured"].items()
    known = [(name, digest) for name, digest in weights if name in today or name.startswith("shipped/")]
    changed = [name for name, digest in known if today.get(name) != digest]
    now = formats()
    return changed + [f"{name} format" for name, own in result.get("formats", {}).items() if now.get(name) != own]


def with_section(page: str, name: str, text: str) -> str:
    """The page with `text` between the two markers of that name, percentages as the prose writes them: 39 %."""
    text = re.sub(r"(?<=\d)%", " %", text)
    section = rf"(<!-- {name}: written by benchmarks/pages\.py -->\n).*?(<!-- end of {name} -->)"
    changed, count = re.subn(section, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    assert count == 1, f"the page has {count} sections named {name}"
    return changed


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with a line end after every row."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def quartiles(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """Median, lower and upper quartile, rounded if `digits` are given."""
    low, middle, high = (value if digits is None else round(value, digits) for value in quantiles(values, n=4))
    return {"median": middle, "lower_quartile": low, "upper_quartile": high}


def by_category(texts: Sequence[T], figures: Callable[[Sequence[T]], K]) -> dict[str, K]:
    """Return figures of the texts of every kind of task (`category`), in the order in which the kinds come first."""
    kinds: dict[str, list[T]] = {}
    for text in texts:
        kinds.setdefault(text.category, []).append(text)  # type: ignore[attr-defined]
    return {kind: figures(own) for kind, own in kinds.items()}


def least_rate(is_enough: Callable[[float], bool], *, halvings: int = 60) -> float:
    """The lowest number from 0 to 1 that is enough, where every higher one is too."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def show(step: str, share: float) -> None:
    """Print progress."""
    print(f"{share:4.0%} {step}", flush=True)


def _hashes(folder: Path) -> Iterator[tuple[str, str]]:
    if (folder / _SOURCE).is_file():
        yield folder.name, source_hash(read_result(folder / _SOURCE))
        return
    ships = folder.parent == SHIPPED_FOLDER.resolve()
    for path in sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        name = f"{folder.name}/{path.name}"
        yield f"shipped/{name}" if ships else name, hashlib.sha256(path.read_bytes()).hexdigest()
