"""Stand-ins for what drafts trees."""

from functools import cache

import numpy as np
import torch

from decoding.messages import NO_WINDOW, Window
from runtime.wire.channel import to_tensor
from tests.runtime import plain
from tests.tiny_models import VOCAB_SIZE


def tree_around(text, rng, *, num_right, num_wrong):
    """A tree that holds the first tokens of `text` on one path, among others; that path is its nodes in order.

    Nodes stand in any order that puts parents before children.
    """
    paths = [tuple(text[:depth]) for depth in range(1, num_right + 1)]
    for _ in range(num_wrong):
        before = ((), *paths)[rng.integers(len(paths) + 1)]
        path = (*before, int(rng.integers(VOCAB_SIZE)))
        if path not in paths and path != tuple(text[: len(path)]):
            paths.append(path)
    paths = sorted((paths[place] for place in rng.permutation(len(paths))), key=len)
    if not paths:
        return NO_WINDOW
    parents = tuple(paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths)
    return Window(tuple(path[-1] for path in paths), parents=parents)


@cache
def _right(target, text, num_tokens):
    return plain.continue_text(target, text, num_tokens)


@cache
def _features(target, text, layers, *, raw):
    if raw:
        return plain.hidden_states(target, text, layers=layers).transpose(0, 1).flatten(-2)
    return plain.features(target, text, layers)


class TreeDrafter:
    """Drafts trees that hold the target's own next tokens, some of them, among others.

    Where and how many follows from the committed text alone. Features that are not the target's are an error.
    """

    feature_layers = (2, 4)
    methods = ("medusa", "eagle2")
    num_streams = 0

    def __init__(self, target, *, raw_features=False):
        self.target, self.raw_features = target, raw_features

    def run_on(self, new_backend):
        return False

    def prepare(self, schedule, *, num_prompt, capacity):
        return False

    def array(self, block):
        return to_tensor(block)

    def prefill(self, prompt, *, schedule, capacity, sampling, features_TE):
        self.text = list(prompt)
        self.size, self.depth = schedule.tree_size, schedule.num_speculative_tokens
        self.features = features_TE
        assert features_TE.shape == (len(prompt) - 1, 32)
        assert len(prompt) < capacity

    def rollout(self, committed=(), features_TE=None):
        self.text += committed
        if features_TE is not None:
            self.features = torch.cat([self.features, features_TE])
        self._check_features()
        yield max(1, len(committed))
        rng = np.random.default_rng(self.text)
        num_right = int(rng.integers(0, self.depth + 1))
        right = _right(self.target, tuple(self.text), num_right)
        window = tree_around(right, rng, num_right=num_right, num_wrong=self.size - num_right)
        yield 1
        return window

    timed_parts = ("head_step",)

    def timed_step(self, measurement):
        return lambda: torch.ones(measurement.rows, measurement.context).sum()

    def _check_features(self):
        if len(self.text) == 1:
            return
        expected = _features(self.target, tuple(self.text[:-1]), self.feature_layers, raw=self.raw_features)
        if not torch.allclose(self.features, expected, atol=1e-3, rtol=1e-3):
            raise ValueError("these are not the features of this text")
