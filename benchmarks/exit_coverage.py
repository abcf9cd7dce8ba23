"""Exit coverage of the shipped adapters by layer and by kind of task, and of the same exits without adapters.

    python benchmarks/exit_coverage.py                                the shipped prompts
    python benchmarks/exit_coverage.py --prompts question.jsonl       Spec-Bench's questions, first turns

The target writes its greedy text once, one row at a time; every exit is then read at every position of that text, as
the engine reads it, and covers a position if the text's next token is among its best ids. Writes
benchmarks/results/exit-coverage-NAME.json, where NAME is `shipped` or the file's stem. Nothing here depends on
time: it may run next to other work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _common
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_text import target_text
from hwprofiles.host import describe_host
from mirrorsd.model_pair import find_pair
from mirrorsd.prompt_tokens import encode
from runtime.backends.eager import EagerBackend
from runtime.models.decoder import Decoder, load_decoder
from runtime.storage.weight_folder import load_folder
from runtime.target.early_exits import EarlyExit, ExitFolderConfig, ExitHeads, load_exits

PAGE_TOP_K = "4"
TOP_K = (1, 2, 4, 8, 16)
Reading = tuple[int, str, int]
"""(exit layer, "trained" or "untrained", how many ids are taken)."""


class Covered(NamedTuple):
    """The positions of one text, and how many of them every reading of an exit covers."""

    category: str
    num_positions: int
    hits: Counter[Reading]


def main() -> None:
    """Measure every prompt and write the result file."""
    options = _options()
    torch.set_num_threads(options.threads)
    name, prompts = _common.chosen_prompts(options)
    pair = find_pair(_common.EMBEDDED, dtype=options.dtype)
    assert pair.exits is not None, "the embedded model has exit adapters"
    dtype = getattr(torch, options.dtype)
    target = load_decoder(pair.target_folder, dtype=dtype)
    exits = load_exits(pair.exits.folder, target, dtype=dtype)
    texts = []
    for index, prompt in enumerate(encode(prompts, pair.target_folder), 1):
        texts.append(cover(target, exits, prompt, max_new_tokens=options.max_new_tokens))
        print(f"\r{index}/{len(prompts)}", end="", flush=True)
    print("\r", end="")
    result = {
        "prompts": name,
        "every": options.every,
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "dtype": options.dtype,
        "target": pair.target,
        "exits": pair.exits.name,
        "platform": describe_host(),
        "measured": _common.measured(pair.target_folder, pair.exits.folder),
        "adapters": adapter_costs(exits, pair.exits.folder),
        **by_category(texts),
    }
    path = _common.RESULTS / f"exit-coverage-{name}.json"
    _common.write_result(path, result)
    print(section(result))


def cover(target: Decoder, exits: ExitHeads, prompt: EncodedPrompt, *, max_new_tokens: int) -> Covered:
    """Read every exit at every position of the target's greedy text; the vocabulary is the same for both."""
    layers = sorted(exits.adapters)
    text = target_text(EagerBackend(target), prompt.ids, max_new_tokens=max_new_tokens, layers=layers)
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


def by_category(texts: Sequence[Covered]) -> dict[str, Any]:
    """Coverage of all positions together, and of each kind of task alone."""
    kinds = {
        category: shares(text for text in texts if text.category == category)
        for category in dict.fromkeys(text.category for text in texts)
    }
    return shares(texts) | {"by_category": kinds}


def shares(texts: Iterable[Covered]) -> dict[str, Any]:
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


def adapter_costs(exits: ExitHeads, folder: Path) -> dict[str, dict[str, int]]:
    """What each adapter has: parameters, their bytes as they are computed with, and on disk."""
    _, stored = load_folder(folder, ExitFolderConfig)
    return {
        str(layer): {
            "num_parameters": sum(weight.numel() for weight in adapter.parameters()),
            "num_bytes": sum(weight.nbytes for weight in adapter.parameters()),
            "num_bytes_on_disk": sum(weight.nbytes for key, weight in stored.items() if key.startswith(f"{layer}.")),
        }
        for layer, adapter in sorted(exits.adapters.items())
    }


def sections() -> dict[str, str]:
    """Return the tables of docs/training.md, by marker."""
    files = sorted(_common.RESULTS.glob("exit-coverage-*.json"))
    return {"coverage": "\n".join(section(_common.read_result(path)) for path in files)}


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


def _options() -> argparse.Namespace:
    parser = _common.prompt_arguments(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
