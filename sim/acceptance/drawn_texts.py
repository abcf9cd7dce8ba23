"""Draws texts from assumed rates into an acceptance record, so that `Replay` serves assumed acceptance too.

Each token has fixed uniform draws, the same for all schedules and rates (common random numbers): a token that is
accepted at a low rate is also accepted at a higher one. The draws of a task are stratified: a share r of its tokens has
a draw below r, up to one token. Shape legend: N tokens of a text, W positions of a window, K candidates.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats, Ints
from decoding.errors import ConfigError
from decoding.methods.in_turn import BLOCK, PROMPT_LOOKUP
from decoding.record import AcceptanceRecord, Ids, PromptRecord, RecordedChain
from decoding.schedule import MAX_TREE
from decoding.tree_shape import Path, grow, places_along
from sim.acceptance.rates import MOST_DRAWN_TOKENS, AssumedTree, TaskRates, Texts

RIGHT, WRONG, OTHERS, EXITS_OTHERS = 1, 0, 2, 1000
"""Token ids: of the text, of a wrong drafted token, and the first id of the draft's and the exit's other candidates."""


class Draws(NamedTuple):
    """Uniform draws for the tokens of a text, [N]: for the draft, its alternatives, exits, and J streams ([N, J])."""

    drafted: Floats
    alternative: Floats
    exit: Floats
    streams: Floats


def draw_record(by_task: Mapping[str, TaskRates], texts: Texts) -> AcceptanceRecord:
    """Draw the texts of all tasks, equally many for each.

    Raises `ConfigError` if there is no task, tasks differ in which assumptions are given, or there are too many texts.
    """
    first = _alike(by_task)
    _refuse_many(len(by_task), first, texts)
    trees = tuple((tree, _paths(tree, first)) for tree in first.trees)
    max_window = min(len(rates.rates) for rates in by_task.values())
    prompts = []
    for number, (task, rates) in enumerate(by_task.items()):
        for index, draws in enumerate(_draws(texts, number, len(first.stream_rates))):
            name = " ".join(filter(None, (task, f"text {index + 1}")))
            prompts.append(_prompt(name, task, rates, texts, draws, max_window, trees))
    return AcceptanceRecord(
        target="assumed",
        drafter="assumed",
        dtype="assumed",
        max_window=max_window,
        max_new_tokens=texts.num_tokens,
        exit_layers=tuple(first.exit_coverage),
        prompts=tuple(prompts),
        trees=tuple(tree.recorded(() if tree.top_k else paths) for tree, paths in trees),
        chains=tuple(
            RecordedChain(method=method.name, drafter=name)
            for method, names in ((BLOCK, first.blocks), (PROMPT_LOOKUP, first.lookups))
            for name in names
        ),
        num_streams=len(first.stream_rates),
        assumed=_in_words(by_task),
    )


def _in_words(by_task: Mapping[str, TaskRates]) -> str:
    """Describe the assumptions of each task; what all tasks have in common is said once."""
    told = {task: rates.in_words() for task, rates in by_task.items()}
    if len({rest for _, _, rest in (words.partition("; ") for words in told.values())}) > 1:
        return " · ".join(f"{task}: {words}" for task, words in told.items())
    first, gap, rest = next(iter(told.values())).partition("; ")
    tasks = " · ".join(f"{task}: {words.partition('; ')[0]}" for task, words in told.items() if task)
    return f"{tasks or first}{gap}{rest}"


def _alike(by_task: Mapping[str, TaskRates]) -> TaskRates:
    """Return the first task's rates; raises `ConfigError` unless all tasks give the same assumptions."""
    if not by_task:
        raise ConfigError("acceptance by task needs a task at least")
    first = next(iter(by_task.values()))
    for task, rates in by_task.items():
        for name, ours, theirs in (
            ("exit_coverage", set(first.exit_coverage), set(rates.exit_coverage)),
            ("feature_rates", bool(first.feature_rates), bool(rates.feature_rates)),
            ("stream_rates", len(first.stream_rates), len(rates.stream_rates)),
            ("trees", first.trees, rates.trees),
            ("blocks", first.blocks, rates.blocks),
            ("lookups", first.lookups, rates.lookups),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"{name} of task {task!r} are given for other things than those of {next(iter(by_task))!r}"
                )
    return first


def _refuse_many(num_tasks: int, rates: TaskRates, texts: Texts) -> None:
    num_drafts = 1 + sum(map(len, (rates.exit_coverage, rates.trees, rates.blocks, rates.lookups)))
    if num_tasks * num_drafts * texts.num_texts * texts.num_tokens > MOST_DRAWN_TOKENS:
        many = f"{num_tasks * texts.num_texts} texts of {texts.num_tokens} tokens, drafted in {num_drafts} ways,"
        raise ConfigError(f"{many} are too many: at most {MOST_DRAWN_TOKENS:,} tokens are drawn")


def _paths(tree: AssumedTree, rates: TaskRates) -> tuple[tuple[int, ...], ...]:
    rank_rates = rates.rank_rates()
    if tree.top_k:
        return pool_paths(rank_rates, tree.depth, tree.top_k)

    def share(path: Path) -> float:
        return prod(float(rank_rates[place]) for place in enumerate(path))

    return tree.paths or grow(share, MAX_TREE, tree.depth, rank_rates.shape[1])


def _draws(texts: Texts, task: int, num_streams: int) -> list[Draws]:
    random = np.random.default_rng((texts.seed, task))
    count = texts.num_texts * texts.num_tokens
    shape = (texts.num_texts, texts.num_tokens)
    drafted, alternative, exits = (
        ((random.permutation(count) + random.random(count)) / count).reshape(shape) for _ in range(3)
    )
    streams = random.random((*shape, num_streams))
    return list(map(Draws, drafted, alternative, exits, streams))


def _prompt(
    name: str,
    task: str,
    rates: TaskRates,
    texts: Texts,
    draws: Draws,
    max_window: int,
    trees: Sequence[tuple[AssumedTree, tuple[tuple[int, ...], ...]]],
) -> PromptRecord:
    own = np.where(
        draws.drafted < min(rates.rates[:max_window]), 0, 1 + _place(rates.alternative_rates, draws.alternative)
    )
    stream_hits = _stream_hits(rates.stream_rates, draws.streams, max_window)
    rollouts = _rollouts(rates.rates[:max_window], draws.drafted)
    width = len(rates.alternative_rates) + 1
    return PromptRecord(
        name=name,
        category=task,
        prompt_length=texts.prompt_length,
        text=np.full(texts.num_tokens, RIGHT, dtype=np.int32),
        rollouts=rollouts,
        chain_drafts=(rollouts,) * (len(rates.blocks) + len(rates.lookups)),
        feature_rollouts=_rollouts(rates.feature_rates[:max_window], draws.drafted),
        # candidates of the draft (a wrong one first) and of exits (one more than shares: one may be the drafted token)
        alternatives=_best_ids([WRONG, *range(OTHERS, OTHERS + width - 1)], own, width),
        exits={
            layer: _best_ids(
                range(EXITS_OTHERS, EXITS_OTHERS + len(shares) + 1), _place(shares, draws.exit), len(shares)
            )
            for layer, shares in rates.exit_coverage.items()
        },
        tree_ranks=tuple(places_along(_ranks(rates, draws), paths, tree.depth) for tree, paths in trees),
        stream_hits=stream_hits,
        feature_stream_hits=stream_hits if rates.feature_rates else np.zeros((0, 0), np.int32),
    )


def _stream_hits(rates: Sequence[float], streams: Floats, max_window: int) -> Ids:
    """Return the number of consecutive right guesses after each drafted token, [N, W]; texts wrap around."""
    if not rates:
        return np.zeros((0, 0), dtype=np.int32)
    hits = np.cumprod(streams < np.array(rates), axis=1).sum(axis=1).astype(np.int32)
    places = np.add.outer(np.arange(len(hits)), np.arange(max_window)) % len(hits)
    found: Ids = hits[places]
    return found


def _rollouts(rates: Sequence[float], drafted: Floats) -> Ids:
    """Return the tokens drafted from each position, [N, W]; empty without rates. Past the text's end all are wrong."""
    if not rates:
        return np.zeros((0, 0), dtype=np.int32)
    padded = np.append(drafted, np.ones(len(rates)))
    draws_NW = np.lib.stride_tricks.sliding_window_view(padded, len(rates))[: len(drafted)]
    return np.where(draws_NW < np.array(rates), RIGHT, WRONG).astype(np.int32)


def _ranks(rates: TaskRates, draws: Draws) -> Ints:
    """Return the ranks of the next W tokens among candidates, [N, W]: the number of ranks if none, -1 past the end."""
    others = 1 + _place(rates.alternative_rates, draws.alternative)
    rank_NW = np.where(draws.drafted[:, None] < np.array(rates.rates), 0, others[:, None])
    padded = np.pad(rank_NW, ((0, len(rates.rates)), (0, 0)), constant_values=-1)
    return np.stack([padded[level : level + len(others), level] for level in range(len(rates.rates))], axis=1)


def _place(shares: Sequence[float], draws: Floats) -> Ints:
    return np.searchsorted(np.array(shares), draws, side="right").astype(np.int64)


def _best_ids(ids_K: Sequence[int], places: Ints, num_known: int) -> Ids:
    """Return candidates, [N, K]: `ids_K` with the text's token at its place, if that is below `num_known`."""
    ids = np.tile(np.array(ids_K, dtype=np.int32), (len(places), 1))
    known = np.flatnonzero(places < num_known)
    ids[known, places[known]] = RIGHT
    return ids


def pool_paths(rank_rates: Floats, depth: int, top_k: int) -> tuple[Path, ...]:
    """Return the nodes that dynamic trees are chosen from, best first: EAGLE-2's rule (2406.16858) on mean rates."""
    frontier: list[tuple[float, Path]] = [(1.0, ())]
    pool: list[tuple[float, Path]] = []
    for level in range(depth):
        children = [
            (share * float(rank_rates[level, rank]), (*path, rank)) for share, path in frontier for rank in range(top_k)
        ]
        pool += children
        frontier = sorted(children, key=lambda child: -child[0])[:top_k]
    return tuple(path for _, path in sorted(pool, key=lambda node: (-node[0], len(node[1]))))
