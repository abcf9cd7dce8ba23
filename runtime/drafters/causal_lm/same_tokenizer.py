"""Whether two models mean the same by every token id."""

from __future__ import annotations

from pathlib import Path

from decoding.errors import ModelError
from runtime.models.tokenizer import Tokenizer


def require_same_tokenizer(draft_folder: Path, target_folder: Path) -> None:
    """Refuse a draft whose tokenizer gives other ids than the target's, token by token.

    Raises:
        ModelError: names the first id at which they differ, and both tokens.
        ModelFormatError: a tokenizer is missing or damaged.
    """
    draft, target = (Tokenizer.from_folder(folder).tokens() for folder in (draft_folder, target_folder))
    for token_id in sorted(draft.keys() | target.keys()):
        ours, theirs = draft.get(token_id), target.get(token_id)
        if ours != theirs:
            raise ModelError(
                f"{draft_folder}: cannot draft for {target_folder}: their tokenizers differ, first at id {token_id}, "
                f"which is {_called(ours)} for the draft and {_called(theirs)} for the target"
            )


def _called(token: str | None) -> str:
    return "no token" if token is None else repr(token)
