"""The tokenizer of a model folder: text to token ids and back, and the chat template.

The `tokenizers` library does not check its files: files that would kill the process are refused here, and its panics
become our errors.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

import tokenizers

from decoding.errors import ConfigError, ModelFormatError, cut, shown
from decoding.files import parse_json, read_bytes
from runtime.models.chat_template import ChatTemplate
from runtime.models.special_tokens import add_tokens, named_tokens, read_settings

_MAX_BYTES: Final = 1 << 27
_MOST_IDS: Final = 1 << 24
"""Limit on token ids, above any vocabulary."""
_MOST_GROWTH: Final = 1000.0
"""How many times longer a normalizer or decoder may make a text."""

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What the bytes of an incomplete character are decoded to."""


class Tokenizer:
    """The tokenizer of a Hugging Face folder. Token ids are those of the model's embedding rows."""

    def __init__(self, backend: tokenizers.Tokenizer, *, settings: Mapping[str, Any], source: Path) -> None:
        self._backend, self._source = backend, source
        with _errors_as(f"{source}: not the settings of a tokenizer"):
            self._special_tokens = {name: token.content for name, token in named_tokens(settings).items()}
            add_tokens(backend, settings)
            backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
        template = self._template_of(settings)
        try:
            self._chat_template = None if template is None else ChatTemplate(template)
        except ValueError as error:
            raise ModelFormatError(f"{source}: the chat template is not valid Jinja ({error})") from error

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read ``tokenizer.json``, its config and chat template; raise `ModelFormatError` if missing or damaged."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFormatError(f"{path}: no such file; only tokenizers in this format are supported")
        with _errors_as(f"{path}: not a readable tokenizer"):
            content = read_bytes(path, _MAX_BYTES)
            _refuse_crash(parse_json(content))
            backend = tokenizers.Tokenizer.from_buffer(content)
            padding = {"pad_token": backend.padding["pad_token"]} if backend.padding else {}
            backend.no_padding()  # as transformers does by default
            backend.no_truncation()
            if (last := max(backend.get_vocab().values(), default=0)) >= _MOST_IDS:
                raise ValueError(f"the id {last} is not below {_MOST_IDS}")
        return cls(backend, settings=padding | read_settings(folder), source=folder)

    def tokens(self) -> dict[int, str]:
        """Return all tokens by id, added special tokens included."""
        return {token_id: token for token, token_id in self._backend.get_vocab(with_added_tokens=True).items()}

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, with the special tokens that the tokenizer adds."""
        return self._ids(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Return the token ids of messages with ``role`` and ``content``, formatted by the model's chat template.

        `add_generation_prompt` appends the beginning of an answer. Raises `ModelFormatError` if there is no template or
        it refuses the messages.
        """
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self._ids(text, add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Return the text that `encode_chat` encodes; arguments and errors are the same."""
        if self._chat_template is None:
            raise ModelFormatError(f"{self._source}: this model has no chat template; give it plain text")
        variables = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        variables |= {"tools": None, "documents": None}  # templates test them against none, not whether they exist
        try:
            return self._chat_template.render(**(self._special_tokens | variables))
        except ValueError as error:
            raise ModelFormatError(f"{self._source}: the chat template refuses: {error}") from error

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        with _errors_as(f"{self._source}: the tokenizer cannot decode its ids"):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with _errors_as(f"{self._source}: the tokenizer cannot encode {shown(text)}"):
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def _template_of(self, settings: Mapping[str, Any]) -> str | None:
        template = settings.get("chat_template")
        if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
            named = {str(entry.get("name")): entry.get("template") for entry in template}
            if named and "default" not in named:
                msg = f"no chat template is called 'default', only {shown(', '.join(named))}"
                raise ModelFormatError(f"{self._source}: {msg}; write the one to use into chat_template.jinja")
            template = named.get("default")
        if not isinstance(template, str | None):
            raise ModelFormatError(f"{self._source}: chat_template should be a text, found {shown(template)}")
        return template


def require_embedded(ids: Sequence[int], tokenizer: Tokenizer, vocab_size: int, named: str = "") -> None:
    """Raise `ConfigError` if `ids` is empty or has an id that a model of `vocab_size` tokens has no embedding for."""
    if not ids:
        what = "chat template leaves nothing" if tokenizer.has_chat_template else "tokenizer knows nothing"
        raise ConfigError(f"{named}the target's {what} of this text: without a token nothing can begin")
    if (last := max(ids)) >= vocab_size:
        token = shown(tokenizer.tokens()[last])
        raise ConfigError(
            f"{named}{token} is token {last} of the target's tokenizer; embeddings end at {vocab_size - 1}"
        )


class StreamDecoder:
    """Decodes ids one after another, holding back incomplete characters; the joined pieces equal `Tokenizer.decode`.

    An exception are byte tokens (SentencePiece's byte fallback): an invalid byte makes `decode` replace the whole run
    of bytes, including characters that were returned before that byte came.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._given: list[int] = []
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that `ids` complete; empty while a character is unfinished."""
        self._pending += ids
        piece = self._piece()
        if not piece or piece.endswith(_UNFINISHED):
            return ""
        self._given, self._pending = self._pending, []
        return piece

    def finish(self) -> str:
        """Return the text held back, with U+FFFD in place of an incomplete character."""
        piece = self._piece()
        self._given, self._pending = [], []
        return piece

    def _piece(self) -> str:
        """Decode the pending ids behind those returned last, as some decoders drop the space that starts a text."""
        given = self._tokenizer.decode(self._given)
        both = self._tokenizer.decode(self._given + self._pending)
        return both[len(given) :]


@contextmanager
def _errors_as(message: str) -> Iterator[None]:
    """Turn the library's errors into ours: it raises a plain `Exception`, or in a panic a `BaseException`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelFormatError(f"{message} ({cut(str(error), 200)})") from error


def _refuse_crash(data: object) -> None:
    """Raise `ValueError` for a file with which the library would kill the process.

    That is one whose normalizer or decoder makes texts far too long, or a merge without the prefix that the library
    strips from it.
    """
    for stage in ("normalizer", "decoder"):
        if isinstance(data, dict) and (growth := _growth(data.get(stage))) > _MOST_GROWTH:
            raise ValueError(f"its {stage} makes {growth:.3g} letters of one")
    model = data.get("model") if isinstance(data, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    if not prefix or not isinstance(model, dict):
        return
    for merge in model.get("merges") or ():
        second = (merge.split(" ") if isinstance(merge, str) else merge)[-1]
        if not str(second).startswith(str(prefix)):
            raise ValueError(f"the merge {shown(merge)} is without the prefix {shown(prefix)}")


def _growth(stage: Any) -> float:
    """Return how many times longer a normalizer or decoder, with the stages in it, may make a text."""
    if not isinstance(stage, dict):
        return 1.0
    inner = next((stages for stages in map(stage.get, ("normalizers", "decoders")) if isinstance(stages, list)), ())
    pattern, content = stage.get("pattern"), stage.get("content")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    growth = len(content) / max(1, len(replaced or "")) if isinstance(content, str) else 1.0
    return prod(map(_growth, inner), start=max(1.0, growth))
