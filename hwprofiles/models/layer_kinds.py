"""Kinds of layers by how they mix tokens: parameters, KV cache, memory traffic and FLOPs of each kind.

Full attention is described by `ModelShape`'s own sizes (`Heads`); the other classes describe the other kinds.
"""

from math import ceil, inf
from typing import Annotated, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from decoding.yaml_file import StrictModel

Size = Annotated[int, Field(ge=1, le=1 << 24)]
Count = Annotated[int, Field(ge=0, le=4096)]
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=False)]
Number = TypeVar("Number", float, NDArray[np.float64])
"""A result for one context length, or an array of results for several."""
ELEMENT_BYTES: Final = 2
"""Bytes of an element of activations."""
_STATE_ELEMENT_BYTES: Final = 4
"""States of linear attention are kept in fp32, as in vLLM, SGLang and llama.cpp."""
_FLOPS_PER_STATE_ELEMENT: Final = 6
"""Per token: the state is read by the key, updated, and read by the query (2 FLOPs each)."""


class Mixer(StrictModel):
    """The cost of mixing tokens (attention or its like) in the layers of one kind.

    Attributes:
        num_layers: number of layers of this kind.
        parameters: of the mixing matrices of one layer.
        cached_elements: elements kept per token, and read for each later token.
        indexed_bytes: bytes of an indexer's keys per token, whatever the cache's bits; always read for all tokens.
        window: number of past tokens that are kept and read; None: all.
        read_tokens: most kept tokens that one token reads (sparse attention); None: all.
        flops_per_key: FLOPs per pair of a token and a key that it reads.
        prompt_flops_per_key: the same in a prefill; None: as `flops_per_key`.
        state_bytes: state of a sequence, independent of its length.
        cache_heads: number of devices that the cache can be split over; further devices hold copies.
        flops_per_token: FLOPs per token beyond matrices and keys.
    """

    num_layers: Size
    parameters: Amount
    cached_elements: Amount = 0
    indexed_bytes: Amount = 0
    window: Size | None = None
    read_tokens: Size | None = None
    flops_per_key: Amount = 0
    prompt_flops_per_key: Amount | None = None
    state_bytes: Amount = 0
    cache_heads: Size = 1
    flops_per_token: Amount = 0

    def kept_bytes(self, num_tokens: float, cache_bits: float, num_devices: int = 1) -> float:
        """Return the cache bytes of a sequence that each of `num_devices` keeps for one layer."""
        kept = num_tokens if self.window is None else min(num_tokens, self.window)
        num_bytes = kept * self.cached_elements * cache_bits / 8 + num_tokens * self.indexed_bytes
        return (num_bytes + self.state_bytes) / self._num_shares(num_devices)

    def moved_bytes(
        self, rows: float, context: Number, cache_bits: float, *, num_states: float, num_devices: int = 1
    ) -> Number:
        """Return the cache bytes of one layer that each of `num_devices` reads, and writes for `rows` tokens.

        `num_states`: how often the state of linear attention is written.
        """
        cached = (self._reached(context) + rows) * self.cached_elements * cache_bits / 8
        moved: Number = cached + (context + rows) * self.indexed_bytes + (1 + num_states) * self.state_bytes
        return moved / self._num_shares(num_devices)

    def _num_shares(self, num_devices: int) -> float:
        """Return the total cache over the share of the device with most heads: 8 / 3 for 8 heads on 3 devices."""
        return self.cache_heads / ceil(self.cache_heads / num_devices)

    def flops(self, rows: float, context: Number, *, is_prompt: bool = False) -> Number:
        """Return FLOPs of one layer without its matrices, over `rows` tokens that read cached ones and each other."""
        of_prompt = self.prompt_flops_per_key if is_prompt else None
        per_key = self.flops_per_key if of_prompt is None else of_prompt
        return rows * (per_key * mean_keys(rows, context, self._limit) + self.flops_per_token)

    @property
    def _limit(self) -> float:
        return min(limit or inf for limit in (self.window, self.read_tokens))

    def _reached(self, context: Number) -> Number:
        reached: Number = np.minimum(context, self._limit)
        return reached


def mean_keys(rows: float, context: Number, limit: float) -> Number:
    """Return the mean number of keys that `rows` new tokens read: cached ones, those of new tokens before, and its own.

    That is the mean of min(context + i, limit) over i from 1 to `rows`.
    """
    growing = np.clip(limit - context, 0, rows)  # rows until the limit is reached
    mean: Number = np.minimum(context, limit) + growing - growing * (growing - 1) / (2 * rows)
    return mean


class Heads(StrictModel):
    """Heads of attention.

    Attributes:
        num_heads, num_kv_heads, head_dim: heads of queries, heads of keys and values, and the width of a head.
        values_are_keys: whether keys and values share one matrix and one cache (Gemma 4's full attention).
        gates_output: whether queries are projected twice, to gate the output (Qwen3.5).
    """

    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    values_are_keys: bool = False
    gates_output: bool = False

    def mixer(self, num_layers: int, hidden_size: int, *, num_tracks: int = 1, window: int | None = None) -> Mixer:
        """Return the cost of `num_layers` layers with such heads."""
        caches = 1 if self.values_are_keys else 2
        columns = (3 if self.gates_output else 2) * self.num_heads + caches * self.num_kv_heads
        return Mixer(
            num_layers=num_layers,
            parameters=num_tracks * hidden_size * self.head_dim * columns,
            cached_elements=num_tracks * caches * self.num_kv_heads * self.head_dim,
            cache_heads=num_tracks * self.num_kv_heads,
            window=window,
            flops_per_key=4 * num_tracks * self.num_heads * self.head_dim,
        )


class SlidingAttention(Heads):
    """Layers whose tokens read the last `window` tokens only."""

    num_layers: Size
    window: Size


class LinearAttention(StrictModel):
    """Layers with a state of constant size (Gated DeltaNet, Kimi Delta Attention).

    Attributes:
        num_layers: number of layers of this kind.
        num_key_heads, num_value_heads, key_head_dim, value_head_dim: numbers and widths of heads; the state of a value
            head has key_head_dim x value_head_dim elements.
        conv_kernel: tokens that the preceding convolution reads.
    """

    num_layers: Size
    num_key_heads: Size
    num_value_heads: Size
    key_head_dim: Size
    value_head_dim: Size
    conv_kernel: Size = 4

    def mixer(self, hidden_size: int) -> Mixer:
        """Return the cost of these layers."""
        keys, values = self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim
        state = values * self.key_head_dim
        convolved = (2 * keys + values) * (self.conv_kernel - 1)
        return Mixer(
            num_layers=self.num_layers,
            parameters=hidden_size * (2 * keys + 3 * values + 2 * self.num_value_heads),
            state_bytes=state * _STATE_ELEMENT_BYTES + convolved * ELEMENT_BYTES,
            cache_heads=self.num_value_heads,
            flops_per_token=_FLOPS_PER_STATE_ELEMENT * state,
        )


class LatentAttention(StrictModel):
    """Keys and values compressed into one vector per token (DeepSeek's MLA), read by all heads.

    Attributes:
        query_rank: width of compressed queries; 0 if they are not compressed.
        kv_rank: width of the compressed keys and values; the cache holds them and `rope_dim` more elements per token.
        rope_dim, nope_dim, value_dim: widths of a head: with and without rotary positions, and of values.
        gates_output: whether the output is gated.
        read_tokens: number of tokens that an indexer selects (sparse attention); 0: all are read.
        index_heads, index_dim: sizes of the indexer, whose keys are kept in 8 bits.
        num_index_layers: number of layers with an indexer; 0: all.
    """

    query_rank: Annotated[int, Field(ge=0, le=1 << 20)]
    kv_rank: Size
    rope_dim: Size
    nope_dim: Size
    value_dim: Size
    gates_output: bool = False
    read_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    index_heads: Count = 0
    index_dim: Count = 0
    num_index_layers: Count = 0

    def mixer(self, num_layers: int, hidden_size: int, num_heads: int) -> Mixer:
        """Return the cost of these layers.

        Engines compute scores on the compressed keys when they decode, and in a prefill with an indexer. In any other
        prefill they first expand keys and values, once for all rows.
        """
        asked = self.query_rank or hidden_size
        head_dim = self.nope_dim + self.rope_dim
        queries = hidden_size * self.query_rank + asked * num_heads * head_dim
        kept = hidden_size * (self.kv_rank + self.rope_dim) + self.kv_rank * num_heads * (
            self.nope_dim + self.value_dim
        )
        output = (2 if self.gates_output else 1) * hidden_size * num_heads * self.value_dim
        index_share = self.num_index_layers / num_layers if self.num_index_layers else 1.0
        index = asked * self.index_heads * self.index_dim + hidden_size * (self.index_dim + self.index_heads)
        has_index = self.index_heads > 0
        return Mixer(
            num_layers=num_layers,
            parameters=queries + kept + output + index * index_share * has_index,
            cached_elements=self.kv_rank + self.rope_dim,
            indexed_bytes=self.index_dim * index_share,
            read_tokens=self.read_tokens or None,
            flops_per_key=2 * num_heads * (2 * self.kv_rank + self.rope_dim),
            prompt_flops_per_key=None if self.read_tokens else 2 * num_heads * (head_dim + self.value_dim),
        )
