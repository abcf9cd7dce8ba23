"""How much of the target's own text a reduced output vocabulary covers: alone, and with the tokens of the prompt.

    python benchmarks/vocabulary.py                                   the shipped prompts
    python benchmarks/vocabulary.py --prompts question.jsonl          Spec-Bench's questions, first turns

A token that a draft cannot name is never accepted. The vocabulary is that of the shipped draft; the text is greedy.
Writes benchmarks/results/vocabulary-NAME.json, where NAME is `shipped` or the file's stem. It does not depend on
time: it may run next to other work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import _common
import torch

from calibrate.prompts import EncodedPrompt, encode_prompts
from calibrate.recording.recorded_text import target_text
from mirrorsd.model_pair import find_pair
from runtime.backends.eager import EagerBackend
from runtime.drafters.language_model.folder import load_draft
from runtime.models.decoder import Decoder, load_decoder
from runtime.models.tokenizer import Tokenizer


class Text(NamedTuple):
    """A prompt's tokens, and those of its answer."""

    category: str
    prompt: Sequence[int]
    answer: Sequence[int]


def main() -> None:
    """Decode, count, write the result file."""
    options = _common.prompt_arguments(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    pair = find_pair(_common.EMBEDDED, heads=())
    assert pair.drafter is not None
    target = load_decoder(pair.target_folder, dtype=torch.bfloat16)
    kept = frozenset(load_draft(pair.drafter.folder, target, dtype=torch.bfloat16).kept_ids.tolist())
    name, prompts = _common.chosen_prompts(options)
    encoded = encode_prompts(prompts, Tokenizer.from_folder(pair.target_folder))
    texts = [_answered(prompt, target, options.max_new_tokens) for prompt in encoded]
    result = {
        "prompts": name,
        "num_prompts": len(texts),
        "max_new_tokens": options.max_new_tokens,
        "drafter": pair.drafter.name,
        "num_kept": len(kept),
        "measured": _common.measured(pair.target_folder, pair.drafter.folder),
        "shares": dict(by_category(texts, kept)),
    }
    _common.write_result(_common.RESULTS / f"vocabulary-{name}.json", result)
    print(json.dumps(result["shares"], indent=2))


def by_category(texts: Sequence[Text], kept: frozenset[int]) -> Iterator[tuple[str, dict[str, float]]]:
    """Shares of all texts, then of every kind of task."""
    yield "all", shares(texts, kept)
    for category in dict.fromkeys(text.category for text in texts):
        yield category, shares([text for text in texts if text.category == category], kept)


def shares(texts: Sequence[Text], kept: frozenset[int]) -> dict[str, float]:
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


def sections() -> dict[str, str]:
    """Return the table of docs/training.md, with a row for every committed result, by marker."""
    rows = []
    for path in sorted(_common.RESULTS.glob("vocabulary-*.json")):
        result = _common.read_result(path)
        found = result["shares"]["all"]
        name = f"`{result['prompts']}`, {result['num_prompts']} prompts"
        shown = (f"{found[share]:.1%}" for share in ("kept", "kept_or_in_prompt"))
        rows.append([name, *shown, str(found["rows_added_per_prompt"])])
    header = ["prompts", "kept ids", "kept, or in the prompt", "rows added per prompt"]
    return {"vocabulary": _common.markdown_table(header, rows)}


def _answered(prompt: EncodedPrompt, target: Decoder, max_new_tokens: int) -> Text:
    text = target_text(EagerBackend(target), prompt.ids, max_new_tokens=max_new_tokens, layers=())
    return Text(prompt.category, prompt.ids, text.tokens)


if __name__ == "__main__":
    main()
