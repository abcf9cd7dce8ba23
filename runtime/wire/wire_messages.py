"""How the replies of `decoding.messages` are written as `runtime.wire.channel` messages, and read again.

Features cross as they are: a `Block` that only lanes turn into a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.messages import Candidates, ExitSignal, Verdict, Window
from runtime.wire.channel import Block, Message


def write_window(window: Window) -> Message:
    """Ids and the shape of a tree as JSON; distributions as two arrays [tokens, candidates]."""
    fields = {"tokens": window.tokens, "alternatives": window.alternatives, "parents": window.parents}
    if not window.distributions:
        return Message(fields)
    ids = [candidates.tokens for candidates in window.distributions]
    probabilities = [candidates.probabilities for candidates in window.distributions]
    return Message(fields, (_block(ids, "int32"), _block(probabilities, "float64")))


def read_window(message: Message) -> Window:
    """The window of a message that `write_window` made."""
    distributions = tuple(
        Candidates(*candidates) for candidates in zip(*[_rows(block) for block in message.blocks], strict=True)
    )
    fields = message.fields
    alternatives = tuple(map(tuple, fields["alternatives"]))
    return Window(tuple(fields["tokens"]), alternatives, distributions, tuple(fields["parents"]))


def write_signal(signal: ExitSignal) -> Message:
    """Two arrays [rows, candidates], and the features if there are any (a `Block`)."""
    blocks = [_block(signal.candidates, "int32"), _block(signal.log_probs, "float32")]
    return Message({}, (*blocks, *_optional(signal.features)))


def read_signal(message: Message) -> ExitSignal:
    """The exit message that `write_signal` made; features as a `Block`."""
    candidates, log_probs, *features = message.blocks
    return ExitSignal(_rows(candidates), _rows(log_probs), features[0] if features else None)


def write_verdict(verdict: Verdict) -> Message:
    """Numbers as JSON, the next window too if there is one, and the features if there are any (a `Block`)."""
    window = None
    if verdict.window is not None:
        assert not verdict.window.distributions, "a target that drafts does not sample its drafts"
        window = write_window(verdict.window).fields
    fields = {
        "num_accepted": verdict.num_accepted,
        "next_token": verdict.next_token,
        "path": verdict.path,
        "window": window,
    }
    return Message(fields, _optional(verdict.features))


def read_verdict(message: Message) -> Verdict:
    """The verdict that `write_verdict` made; features as a `Block`."""
    fields = message.fields
    window = None if fields["window"] is None else read_window(Message(fields["window"]))
    features = message.blocks[0] if message.blocks else None
    return Verdict(fields["num_accepted"], fields["next_token"], features, tuple(fields["path"]), window)


def _optional(features: Block | None) -> tuple[Block, ...]:
    return () if features is None else (features,)


def _block(rows: Sequence[Sequence[float]], dtype: str) -> Block:
    array = np.array(rows, dtype)
    return Block(dtype, array.shape, array.tobytes())


def _rows(block: Block) -> tuple[tuple[Any, ...], ...]:
    array = np.frombuffer(block.data, block.dtype).reshape(block.shape)
    return tuple(map(tuple, array.tolist()))
