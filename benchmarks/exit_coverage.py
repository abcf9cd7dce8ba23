"""How much of the target's own text early exits name, and how much of it a draft's reduced vocabulary can.

    python benchmarks/exit_coverage.py                                the shipped prompts
    python benchmarks/exit_coverage.py --prompts question.jsonl       Spec-Bench's questions, first turns
    python benchmarks/exit_coverage.py --vocabulary                   the vocabulary of the shipped draft model

The target writes its greedy text once, one row at a time; every exit is then read at every position of that text, as
the engine reads it, with the shipped adapters and without, and covers a position if the text's next token is among its
best ids. A token that the draft's vocabulary lacks is never accepted, unless it is in the prompt. Writes
benchmarks/results/exit-coverage-NAME.json or vocabulary-NAME.json, where NAME is `shipped` or the file's stem. Nothing
here depends on time: it may run next to other work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import _common
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_text import TextWriter, WantedText
from hwprofiles.host import describe_host
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.prompt_tokens import encode
from runtime.backends.eager import EagerBackend
from runtime.drafters.language_model.folder import load_draft
from runtime.models.decoder import Decoder, load_decoder
from runtime.target.early_exits import EarlyExit, ExitHeads, load_exits

PAGE_TOP_K = "4"
TOP_K = (1, 2, 4, 8, 16)
Reading = tuple[int, str, int]
"""(exit layer, "trained" or "untrained", how many ids are taken)."""


class Covered(NamedTuple):
    """The positions of one text, and how many of them every reading of an exit covers."""

    category: str
    num_positions: int
    hits: Counter[Reading]


class Text(NamedTuple):
    """A prompt's tokens, and those of its answer."""

    category: str
    prompt: Sequence[int]
    answer: Sequence[int]


def main() -> None:
    """Decode and count, and write the result file."""
    parser = _common.prompt_arguments(__doc__, vocabulary=(False, "count what the draft's vocabulary covers"))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    name, prompts = _common.chosen_prompts(options)
    pair = find_pair(_common.EMBEDDED, dtype=options.dtype)
    target = load_decoder(pair.target_folder, dtype=getattr(torch, options.dtype))
    shared = {"prompts": name, "num_prompts": len(prompts), "max_new_tokens": options.max_new_tokens}
    encoded = encode(prompts, pair.target_folder)
    measured = _vocabulary if options.vocabulary else _coverage
    kind = "vocabulary" if options.vocabulary else "exit-coverage"
    _common.write_result(_common.RESULTS / f"{kind}-{name}.json", shared | measured(target, pair, encoded, options))


def _coverage(
    target: Decoder, pair: ModelPair, prompts: Sequence[EncodedPrompt], options: argparse.Namespace
) -> dict[str, Any]:
    assert pair.exits is not None, "the default model has exit adapters"
    exits = load_exits(pair.exits.folder, target, dtype=getattr(torch, options.dtype))
    texts = []
    for index, prompt in enumerate(prompts, 1):
        texts.append(cover(target, exits, prompt, max_new_tokens=options.max_new_tokens))
        print(f"\r{index}/{len(prompts)}", end="", flush=True)
    return {
        "every": options.every,
        "dtype": options.dtype,
        "target": pair.target,
        "exits": pair.exits.name,
        "platform": describe_host(),
        "measured": _common.measured(pair.target_folder, pair.exits.folder),
        "adapters": adapter_costs(exits),
        **shares(texts),
        "by_category": _common.by_category(texts, shares),
    }


def _vocabulary(
    target: Decoder, pair: ModelPair, prompts: Sequence[EncodedPrompt], options: argparse.Namespace
) -> dict[str, Any]:
    assert pair.drafter is not None, "the default model has a draft model"
    kept = frozenset(load_draft(pair.drafter.folder, target, dtype=torch.bfloat16).kept_ids.tolist())
    writer = TextWriter(EagerBackend(target), max_new_tokens=options.max_new_tokens, layers=())
    texts = [Text(one.category, one.ids, writer.alone(WantedText(one.ids)).tokens) for one in prompts]
    return {
        "drafter": pair.drafter.name,
        "num_kept": len(kept),
        "measured": _common.measured(pair.target_folder, pair.drafter.folder),
        "shares": {"all": kept_shares(texts, kept)} | _common.by_category(texts, lambda own: kept_shares(own, kept)),
    }


def kept_shares(texts: Sequence[Text], kept: frozenset[int]) -> dict[str, float]:
    """Of the answers' tokens those that are kept, and those that are kept or in the prompt; rows that adds."""
    num_tokens = sum(len(text.answer) for text in texts)
    alone = sum(token in kept for text in texts for token in text.answer)
    together = sum(token in kept or token in text.prompt for text in texts for token in text.answer)
    rows = sum(len(set(text.prompt) - kept) for text in texts)
    return {
        "kept": round(alone / num_tokens, 4),
        "kept_or_in_prompt": round(together / num_tokens, 4),
        "rows_added_per_prompt": round(rows / len(texts), 1),
        "num_tokens": num_tokens,
    }


def cover(target: Decoder, exits: ExitHeads, prompt: EncodedPrompt, *, max_new_tokens: int) -> Covered:
    """Read every exit at every position of the target's greedy text; the vocabulary is the same for both."""
    layers = sorted(exits.adapters)
    text = TextWriter(EagerBackend(target), max_new_tokens=max_new_tokens, layers=layers).alone(WantedText(prompt.ids))
    untrained = ExitHeads(adapters={}, kept_ids=exits.kept_ids)
    hits: Counter[Reading] = Counter()
    for state, heads in (("trained", exits), ("untrained", untrained)):
        early_exit = EarlyExit(target.lm_head.weight.detach(), heads, EagerBackend(target))
        early_exit.add_prompt_tokens(prompt.ids)
        for layer in layers:
            after_prompt_ND = text.states[layer][len(prompt.ids) - 1 :]
            ranked, _ = early_exit.read(after_prompt_ND[None], layer, max(TOP_K))
            for top_k in TOP_K:
                pairs = zip(ranked, text.tokens, strict=True)
                hits[layer, state, top_k] = sum(token in best[:top_k] for best, token in pairs)
    return Covered(prompt.category, len(text.tokens), hits)


def shares(texts: Sequence[Covered]) -> dict[str, Any]:
    """`coverage` by layer, state and number of ids, of `num_positions`."""
    hits: Counter[Reading] = Counter()
    num_positions = 0
    for text in texts:
        hits.update(text.hits)
        num_positions += text.num_positions
    coverage: dict[str, dict[str, dict[str, float]]] = {}
    for (layer, state, top_k), count in sorted(hits.items()):
        coverage.setdefault(str(layer), {}).setdefault(state, {})[str(top_k)] = round(count / num_positions, 4)
    return {"num_positions": num_positions, "coverage": coverage}


def adapter_costs(exits: ExitHeads) -> dict[str, dict[str, int]]:
    """What each adapter has: parameters, and their bytes as they are computed with."""
    return {
        str(layer): {
            "num_parameters": sum(weight.numel() for weight in adapter.parameters()),
            "num_bytes": sum(weight.nbytes for weight in adapter.parameters()),
        }
        for layer, adapter in sorted(exits.adapters.items())
    }


def sections() -> dict[str, str]:
    """Return the tables of docs/training.md, by marker."""
    files = sorted(_common.RESULTS.glob("exit-coverage-*.json"))
    coverage = "\n".join(section(_common.read_result(path)) for path in files)
    rows = []
    for path in sorted(_common.RESULTS.glob("vocabulary-*.json")):
        result = _common.read_result(path)
        found = result["shares"]["all"]
        name = f"`{result['prompts']}`, {result['num_prompts']} prompts"
        shown = (f"{found[share]:.1%}" for share in ("kept", "kept_or_in_prompt"))
        rows.append([name, *shown, str(found["rows_added_per_prompt"])])
    header = ["prompts", "kept ids", "kept, or in the prompt", "rows added per prompt"]
    return {"coverage": coverage, "vocabulary": _common.markdown_table(header, rows)}


def section(result: dict[str, Any]) -> str:
    """One set of prompts as a table in Markdown: a row for every kind of task, a column for every exit."""
    layers = list(result["adapters"])
    kinds = {"all": result, **result["by_category"]}
    rows = [
        [name, *(_cell(figures["coverage"][layer]) for layer in layers), f"{figures['num_positions']:,}"]
        for name, figures in kinds.items()
    ]
    header = [f"top-{PAGE_TOP_K}", *(f"after layer {layer}" for layer in layers), "positions"]
    return (
        f"`{result['prompts']}`, {result['num_prompts']} prompts, up to {result['max_new_tokens']} new tokens each:\n\n"
        + _common.markdown_table(header, rows)
    )


def _cell(states: dict[str, dict[str, float]]) -> str:
    return f"{states['untrained'][PAGE_TOP_K]:.2f} → {states['trained'][PAGE_TOP_K]:.2f}"


if __name__ == "__main__":
    main()
