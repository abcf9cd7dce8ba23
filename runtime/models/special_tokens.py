"""Reads a tokenizer's settings, and adds the special tokens that tokenizer.json lacks, with the ids of transformers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from decoding.errors import ModelFormatError, shown
from decoding.files import read_text
from decoding.validation import errors_as
from runtime.models.hf_config import read_object

_USUAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LISTED: Final = "added_tokens_decoder"
_OLDER_NAMES: Final = "special_tokens_map.json"
_OLDER_IDS: Final = "added_tokens.json"


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json; older files and chat_template.jinja override it.

    Raises `ModelFormatError` for a damaged file.
    """
    settings, template = _settings(folder), folder / "chat_template.jinja"
    older = {path.name: read_object(path, holds="") for path in older_files(folder)}
    settings |= older.get(_OLDER_NAMES, {})
    settings |= {_OLDER_IDS: older[_OLDER_IDS]} if _OLDER_IDS in older else {}
    if template.is_file():
        with errors_as(ModelFormatError, f"{template}: cannot be read"):
            settings["chat_template"] = read_text(template)
    return settings


def older_files(folder: Path) -> list[Path]:
    """Return the separate files of special tokens; they count only if the settings have no `added_tokens_decoder`."""
    paths = [path for path in (folder / _OLDER_NAMES, folder / _OLDER_IDS) if path.is_file()]
    return paths if paths and _LISTED not in _settings(folder) else []


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object(path, holds="") if path.is_file() else {}


def named_tokens(settings: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Return the special tokens that have names, such as `eos_token`; raise `TypeError` for one that is no text."""
    others = {key: value for key, value in settings.items() if key.endswith("_token") and _is_token(value)}
    extra = _extra(settings)
    values = dict.fromkeys(_USUAL) | others | {key: settings[key] for key in _USUAL if key in settings}
    values |= extra if isinstance(extra, dict) else {}
    return {str(name): _token(value, special=True) for name, value in values.items() if value is not None}


def add_tokens(backend: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Add the tokens of the settings as transformers does: those with an id in its order, then those with only a name.

    New ids follow the last one of the vocabulary, whatever the settings say. Raises `ValueError` or `TypeError` for an
    invalid token.
    """
    named = named_tokens(settings)
    listed = dict(_listed(settings)) if settings.get(_LISTED) is not None else dict(_older(settings, backend))
    tokens = [listed[token_id] for token_id in sorted(listed)]
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *tokens)}
    extra = _extra(settings)
    others = [_token(value) for value in extra] if isinstance(extra, list) else []
    tokens += [token for token in (*named.values(), *others) if token.content not in known]
    names = {token.content for token in named.values()}
    for token in tokens:
        token.special = token.special or token.content in names
    backend.add_tokens(tokens)


def _listed(settings: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    for token_id, value in settings[_LISTED].items():
        yield int(token_id), _token(value)


def _older(settings: Mapping[str, Any], backend: Tokenizer) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens of added_tokens.json with their ids, then those of tokenizer.json, whose flags may change."""
    extra = _extra(settings)
    special = {token.content for token in named_tokens(settings).values()}
    special |= {_token(value).content for value in extra} if isinstance(extra, list) else set()
    for content, token_id in settings.get(_OLDER_IDS, {}).items():
        yield int(token_id), AddedToken(content, special=content in special)
    yield from backend.get_added_tokens_decoder().items()


def _extra(settings: Mapping[str, Any]) -> Any:
    return settings.get("extra_special_tokens") or settings.get("additional_special_tokens")


def _is_token(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and value.get("__type") == "AddedToken")


def _token(value: object, **flags: bool) -> AddedToken:
    content = value.get("content") if isinstance(value, dict) else value
    if not isinstance(content, str):
        raise TypeError(f"a special token should be a text, found {shown(value)}")
    stored = {flag: value[flag] for flag in _FLAGS if flag in value} if isinstance(value, dict) else {"special": True}
    return AddedToken(content, **(stored | flags))
