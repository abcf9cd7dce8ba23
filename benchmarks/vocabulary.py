"""How much of the target's own text a reduced output vocabulary can say: alone, and with the tokens of the prompt.

    python benchmarks/vocabulary.py                                   the shipped prompts
    python benchmarks/vocabulary.py --prompts question.jsonl          Spec-Bench's questions, first turns
    python benchmarks/vocabulary.py --page                            writes the table of docs/training.md

What a draft cannot say it can never get accepted. The vocabulary is that of the shipped draft; the text is greedy.
Writes benchmarks/results/vocabulary-NAME.json, where NAME is `shipped` or the file's stem. It does not depend on
time: it may run beside other work.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from calibrate.prompts import EncodedPrompt, bundled_prompts, encode_prompts, load_prompts
from calibrate.recording.recorded_text import greedy_text
from decoding.yaml_file import write_atomically
from mirrorsd.model_pair import find_pair
from runtime.drafters.language_model.folder import load_draft
from runtime.models.decoder import Decoder
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "training.md"
START = "<!-- vocabulary: written by benchmarks/vocabulary.py -->\n"
END = "<!-- end of vocabulary -->"


class Text(NamedTuple):
    """A prompt's tokens, and those of its answer."""

    category: str
    prompt: Sequence[int]
    answer: Sequence[int]


def main() -> None:
    """Decode, count, write the result file; or the page alone."""
    options = _options()
    if options.page:
        PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    torch.set_num_threads(options.threads)
    pair = find_pair("smollm2-135m-instruct", heads=())
    assert pair.drafter is not None
    target = load_decoder(pair.target_folder, dtype=torch.bfloat16)
    kept = frozenset(load_draft(pair.drafter.folder, target, dtype=torch.bfloat16).kept_ids.tolist())
    prompts = bundled_prompts() if options.prompts is None else load_prompts(options.prompts)
    encoded = encode_prompts(prompts[:: options.every], Tokenizer.from_folder(pair.target_folder))
    texts = [_answered(prompt, target, options.max_new_tokens) for prompt in encoded]
    result = {
        "prompts": "shipped" if options.prompts is None else options.prompts.stem,
        "num_prompts": len(texts),
        "max_new_tokens": options.max_new_tokens,
        "drafter": pair.drafter.name,
        "num_kept": len(kept),
        "shares": dict(by_category(texts, kept)),
    }
    path = RESULTS / f"vocabulary-{result['prompts']}.json"
    write_atomically(path, json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["shares"], indent=2))


def by_category(texts: Sequence[Text], kept: frozenset[int]) -> Iterator[tuple[str, dict[str, float]]]:
    """Shares of all texts, then of every kind of task."""
    yield "all", shares(texts, kept)
    for category in dict.fromkeys(text.category for text in texts):
        yield category, shares([text for text in texts if text.category == category], kept)


def shares(texts: Sequence[Text], kept: frozenset[int]) -> dict[str, float]:
    """Of the answers' tokens those that are kept, and those that are kept or stand in the prompt; rows that adds."""
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


def with_results(page: str) -> str:
    """The page with a row for every committed result between its markers."""
    lines = [["prompts", "kept ids", "kept, or in the prompt", "rows added per prompt"], ["---"] * 4]
    for path in sorted(RESULTS.glob("vocabulary-*.json")):
        result = json.loads(path.read_bytes())
        found = result["shares"]["all"]
        name = f"`{result['prompts']}`, {result['num_prompts']} prompts"
        shown = (f"{found[share]:.1%}" for share in ("kept", "kept_or_in_prompt"))
        lines.append([name, *shown, str(found["rows_added_per_prompt"])])
    before, rest = page.split(START)
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return before + START + table + END + rest.split(END)[1]


def _answered(prompt: EncodedPrompt, target: Decoder, max_new_tokens: int) -> Text:
    text = greedy_text(target, prompt.ids, max_new_tokens=max_new_tokens, layers=())
    return Text(prompt.category, prompt.ids, text.tokens)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl, or rows with a prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take one prompt of so many, to be done sooner")
    parser.add_argument("--page", action="store_true", help="measure nothing, write docs/training.md anew")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
