"""Loads prompt sets (JSON Lines) and draws samples of them.

A line has one of these forms:

- ours: `{"prompt_id": "qa-salt", "category": "qa", "prompt": "..."}`
- bare: `{"prompt": "..."}`, optionally with an `id`; without one, file and line number are the id
- Spec-Bench: `{"question_id": 82, "category": "writing", "turns": ["...", "..."]}`; MT-bench counts as one category
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, zip_longest
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from decoding.errors import ConfigError, shown
from decoding.files import parse_json, read_text
from decoding.validation import errors_as

MAX_CHARACTERS: Final = 1_000_000
"""Longest text of a prompt: at least 250,000 tokens, which a tokenizer reads in seconds."""
MAX_NAME_CHARACTERS: Final = 200
MAX_FILE_BYTES: Final = 256 << 20

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
_ROW_KINDS = '{"prompt": ...}, {"prompt_id": ..., "category": ..., "prompt": ...} or a Spec-Bench row with "turns"'
PromptSet = Literal["demo", "pool", "long"]
PROMPT_SETS: Final[tuple[PromptSet, ...]] = get_args(PromptSet)
_BUNDLED = Path(__file__).with_name("prompt_sets")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A user's prompt, turn by turn; `prompt_id` is unique in its set, and `category` is the kind of task, or "".

    Raises:
        ConfigError: `turns` is no list of texts, or a text is too long or contains a lone surrogate.
    """

    prompt_id: str
    category: str
    turns: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.turns, str) or not self.turns or not all(isinstance(turn, str) for turn in self.turns):
            raise ConfigError(f"turns should be a list of texts, found {shown(self.turns)}")
        limits = [("prompt_id", self.prompt_id, MAX_NAME_CHARACTERS), ("category", self.category, MAX_NAME_CHARACTERS)]
        for what, text, most in [*limits, *(("the text", turn, MAX_CHARACTERS) for turn in self.turns)]:
            if len(text) > most:
                raise ConfigError(f"{what} has {len(text):,} characters; at most {most:,} are read")
            if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ConfigError(f"{what} holds half a pair of surrogates, which is no character: {shown(text)}")

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]


class EncodedPrompt(NamedTuple):
    """A prompt as the target reads it: `ids` are the tokens of the whole chat up to the answer."""

    name: str
    category: str
    ids: tuple[int, ...]


def bundled_prompts(name: PromptSet = "demo") -> tuple[Prompt, ...]:
    """Return a shipped prompt set; ids are unique over all sets. Raises `ConfigError` for an unknown name.

    `demo` has eight prompts for each of Spec-Bench's six kinds of task. `pool` adds 32 more of each kind, one in ten of
    them with 250 tokens or more. `long` has six prompts of 300 to 1,500 tokens.
    """
    if name not in PROMPT_SETS:
        raise ConfigError(f"there is no prompt set {shown(name)}; prompt sets: {', '.join(PROMPT_SETS)}")
    files = ("demo", "pool") if name == "pool" else (name,)
    return tuple(chain.from_iterable(load_prompts(_BUNDLED / f"{file}.jsonl") for file in files))


def own_seeds(prompts: Sequence[Sequence[int]], seed: int, kept: Mapping[int, int] | None = None) -> list[int]:
    """Return the seed that the text of each prompt (given by its token ids) is sampled with.

    It is `seed`; when a prompt repeats, the next one that no equal prompt has. `kept` are given seeds, by index.
    """
    kept = kept or {}
    all_ids, next_seeds = list(map(tuple, prompts)), defaultdict[tuple[int, ...], Iterator[int]](lambda: count(seed))
    taken = {(all_ids[index], own) for index, own in kept.items()}
    return [
        kept[index] if index in kept else next(own for own in next_seeds[ids] if (ids, own) not in taken)
        for index, ids in enumerate(all_ids)
    ]


def load_prompts(path: str | Path) -> tuple[Prompt, ...]:
    """Return the prompts of a file in order; empty lines are skipped.

    Raises `ConfigError` (with file and line) if the file is missing or empty, or a line is wrong.
    """
    path = Path(path)
    with errors_as(ConfigError, f"{path}: cannot be read"):
        # editors on Windows write a byte order mark
        lines = read_text(path, MAX_FILE_BYTES).removeprefix("\ufeff").split("\n")
    prompts = tuple(_read(lines, path))
    if not prompts:
        raise ConfigError(f"{path}: holds no prompt; each line should be {_ROW_KINDS}")
    return prompts


def take_per_category(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """Return the first `count` prompts of each category, in the order given."""
    taken: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        taken[prompt.category] += 1
        if taken[prompt.category] <= count:
            chosen.append(prompt)
    return tuple(chosen)


def take_turns(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts with their categories alternating, so that the first n are a fair mix."""
    kinds: defaultdict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        kinds[prompt.category].append(prompt)
    return tuple(prompt for prompt in chain.from_iterable(zip_longest(*kinds.values())) if prompt is not None)


def draw_prompts(prompts: Sequence[Prompt], count: int, seed: int) -> tuple[Prompt, ...]:
    """Return up to `count` randomly drawn prompts of different texts, with alternating categories (`take_turns`).

    Categories and the prompts in each are in random order. The seed determines the draw, and a smaller draw is the
    beginning of a larger one.
    """
    firsts: dict[str, Prompt] = {}
    for prompt in prompts:
        firsts.setdefault(prompt.text, prompt)
    shuffled = random.Random(seed).sample(list(firsts.values()), len(firsts))
    return take_turns(shuffled)[:count]


def _read(lines: Sequence[str], path: Path) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(parse_json(line), fallback_id=f"{path.stem[: MAX_NAME_CHARACTERS // 2]}-{number}")
        except JSONDecodeError as error:
            found = f"no JSON ({error.msg}, character {error.pos + 1})"
            raise ConfigError(f"{path}:{number}: {found}; a row is {_ROW_KINDS}") from error
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        if prompt.prompt_id in seen:
            raise ConfigError(
                f"{path}:{number}: the id {shown(prompt.prompt_id)} is that of line {seen[prompt.prompt_id]} already"
            )
        seen[prompt.prompt_id] = number
        yield prompt


def _parse(row: Any, *, fallback_id: str) -> Prompt:
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {type(row).__name__}; a row is {_ROW_KINDS}")  # noqa: TRY004 - the caller adds file and line to every ValueError
    category = _name(row, "category", default="")
    if category in MT_BENCH_CATEGORIES and "turns" in row:
        category = "mt_bench"
    named_by = next((key for key in ("prompt_id", "question_id", "id") if key in row), "id")
    prompt_id = _name(row, named_by, default=fallback_id)
    return Prompt(prompt_id=prompt_id, category=category, turns=_turns(row))


def _name(row: dict[str, Any], key: str, *, default: str) -> str:
    value = row.get(key)
    if value is None:
        return default
    if type(value) not in (str, int):
        raise ValueError(f"{key!r} should be a text or a whole number, found {shown(value)}")
    return str(value)


def _turns(row: dict[str, Any]) -> tuple[str, ...]:
    name = "turns" if "turns" in row else "prompt"
    if name not in row:
        raise ValueError(
            f"found neither 'prompt' nor 'turns' among the keys {shown(sorted(row))}; a row is {_ROW_KINDS}"
        )
    turns = row["turns"] if name == "turns" else [row["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        wanted = "a list of texts that are not empty" if name == "turns" else "a text that is not empty"
        raise ValueError(f"{name!r} should be {wanted}, found {shown(row[name])}")
    return tuple(turns)
