"""Streams against a reference that computes one stream of one row at a time, without masks, caches or batches."""

import math

import pytest
import torch

from decoding.errors import ModelError
from decoding.messages import NO_WINDOW
from runtime.drafters.language_model.folder import StreamConfig
from runtime.drafters.registry import find_drafter
from runtime.drafters.streams import Borrowed, StreamingTarget, StreamModel, load_streams, run_along, stream_mask
from runtime.models.decoder import causal_mask, load_decoder
from runtime.models.kv_cache import KVCache
from runtime.models.tokenizer import Tokenizer
from runtime.target.target_model import TargetModel
from tests.runtime import plain
from tests.tiny_models import tiny_streams

TEXT = [5, 17, 3, 44, 8, 29, 51]


def norm(x, weight):
    return x / (x.pow(2).mean() + 1e-5).sqrt() * weight


def turned(heads, position, theta=10_000.0):
    """Each head rotated to its position, pair by pair."""
    out = heads.clone()
    half = heads.shape[-1] // 2
    for pair in range(half):
        angle = position * theta ** (-pair / half)
        low, high = heads[:, pair], heads[:, pair + half]
        out[:, pair] = low * math.cos(angle) - high * math.sin(angle)
        out[:, pair + half] = high * math.cos(angle) + low * math.sin(angle)
    return out


def changed(streams, layer, name):
    """A matrix of the decoder with its low-rank change added."""
    part = getattr(streams.layers[layer], name)
    return part.base.weight + part.widen.weight @ part.narrow.weight


def query_key_value(x, norm_weight, matrix, config, position):
    parts = (matrix @ norm(x, norm_weight)).view(-1, config.head_dim)
    q, k, v = parts.split([config.num_heads, config.num_kv_heads, config.num_kv_heads])
    return turned(q, position), turned(k, position), v


def streams_of_row(target, streams, text, row):
    """Normalised states of all streams of one row, one stream after the other, [J, D]."""
    config, start = target.config, streams.config.start_layer
    states = plain.hidden_states(target, text, layers=range(1, config.num_layers + 1))
    scale = math.sqrt(config.hidden_size)
    xs = [states[start - 1][row] + streams.embedding[j] * scale for j in range(streams.config.num_streams)]
    for index in range(start, config.num_layers):
        base, above = target.layers[index], index - start
        keys, values = [], []
        for place in range(row + 1):
            _, k, v = query_key_value(states[index - 1][place], base.input_norm, base.qkv.weight, config, place)
            keys.append(k)
            values.append(v)
        for j, x in enumerate(xs):
            matrix = changed(streams, above, "qkv")
            q, k, v = query_key_value(x, base.input_norm, matrix, config, row + j + 1)
            keys.append(k)
            values.append(v)
            mixed = []
            for head in range(config.num_heads):
                kv = head // config.num_queries_per_kv
                scores = torch.stack([q[head] @ key[kv] for key in keys]) / math.sqrt(config.head_dim)
                mixed.append(sum(w * value[kv] for w, value in zip(scores.softmax(0), values, strict=True)))
            attended = x + changed(streams, above, "out") @ torch.cat(mixed)
            gate, up = (changed(streams, above, "gate_up") @ norm(attended, base.mlp_norm)).chunk(2)
            xs[j] = attended + changed(streams, above, "down") @ (torch.nn.functional.silu(gate) * up)
    return torch.stack([norm(x, target.final_norm) for x in xs])


@pytest.fixture
def streams(target):
    return tiny_streams(target)


def cached(target, text):
    """A cache that holds a text, and the states after layer 2."""
    cache = KVCache(target.config, 20, dtype=torch.float32)
    x = target.embedding(torch.tensor([text]))
    options = {"positions": torch.arange(len(text)), "mask": causal_mask(len(text), torch.float32), "cache": cache}
    half_way = target.run_layers(x, 0, 2, **options)
    target.run_layers(half_way, 2, target.config.num_layers, **options)
    cache.advance(len(text))
    return cache, half_way


def test_streams_of_the_last_row_see_the_text_and_those_before_them(target, streams):
    cache, x = cached(target, TEXT)
    found = streams(x[:, -1:], positions=torch.tensor([len(TEXT) - 1]), cache=cache)
    expected = streams_of_row(target, streams, TEXT, len(TEXT) - 1)
    torch.testing.assert_close(found[0, 0], expected, atol=2e-4, rtol=1e-3)


def test_streams_of_many_rows_at_once_are_those_of_each_row_alone(target, streams):
    _, x = cached(target, TEXT)
    positions = torch.tensor([1, 2, 5])
    visible = torch.zeros(3, len(TEXT)).masked_fill(torch.arange(len(TEXT)) > positions[:, None], -math.inf)
    final, keys = run_along(target, x, 2)
    torch.testing.assert_close(target.logits(final)[0], plain.target_logits(target, TEXT))
    mask = stream_mask(visible, 3)
    found = streams(x[:, positions], positions=positions, mask=mask, cache=Borrowed(keys))[0]
    for place, row in enumerate(positions.tolist()):
        expected = streams_of_row(target, streams, TEXT, row)
        torch.testing.assert_close(found[place], expected, atol=2e-4, rtol=1e-3)


def test_some_of_the_streams_alone_are_what_they_are_among_all(target, streams):
    cache, x = cached(target, TEXT)
    found = streams(x[:, -1:], positions=torch.tensor([6]), cache=cache, num_streams=2)
    assert found.shape == (1, 1, 2, 16)
    torch.testing.assert_close(found[0, 0], streams_of_row(target, streams, TEXT, 6)[:2], atol=2e-4, rtol=1e-3)


def test_streams_leave_keys_weights_and_rows_of_the_decoder_alone(target, streams):
    cache, x = cached(target, TEXT)
    length = cache.cursor
    before = cache.memory.slots.clone()
    logits = plain.target_logits(target, TEXT)
    streams(x[:, -1:], positions=torch.tensor([6]), cache=cache)
    assert torch.equal(cache.memory.slots[..., :length, :], before[..., :length, :])
    assert cache.cursor == length
    assert torch.equal(plain.target_logits(target, TEXT), logits)


def test_untrained_streams_are_the_decoder_shifted_in_position(target):
    """With no change and no embedding the only stream of a row is that row, read one position later."""
    streams = StreamModel(target, StreamConfig(num_streams=1, start_layer=2, rank=2))
    cache, x = cached(target, TEXT)
    found = streams(x[:, -1:], positions=torch.tensor([6]), cache=cache)
    again = target.run_layers(x[:, -1:], 2, 4, positions=torch.tensor([7]), cache=cache)
    torch.testing.assert_close(found[0], target.normalise(again))


def test_only_embedding_and_low_rank_changes_are_trained(target, streams):
    trained = streams.trained
    assert len(trained) == 1 + 2 * 4 * 2, "an embedding, and two matrices for each of four in two layers"
    assert "embedding" in trained
    assert all(name.endswith(("narrow.weight", "widen.weight")) for name in trained.keys() - {"embedding"})
    of_the_decoder = {id(weight) for weight in target.parameters()}
    for name, weight in streams.named_parameters():
        assert (id(weight) in of_the_decoder) == (name not in trained), name


def test_streams_may_look_after_the_last_position_there_is(target, streams):
    last = len(target.rotary.cos_PH) - 1
    cache, x = cached(target, TEXT)
    found = streams(x[:, -1:], positions=torch.tensor([last]), cache=cache)
    assert found.isfinite().all()


@pytest.mark.parametrize("start_layer", [0, 4])
def test_impossible_sizes_are_refused(target, start_layer):
    with pytest.raises(ModelError, match=rf"start_layer {start_layer} is outside 1\.\.3"):
        StreamModel(target, StreamConfig(num_streams=2, start_layer=start_layer, rank=2))


NUM_NEW = 16


def test_a_target_that_drafts_says_what_it_says_by_itself_in_fewer_passes(embedded_model_folder):
    decoder = load_decoder(embedded_model_folder, dtype=torch.float32)
    chat = [{"role": "user", "content": "Count from one to ten, then explain how rain forms."}]
    prompt = Tokenizer.from_folder(embedded_model_folder).encode_chat(chat)
    alone = TargetModel.of(decoder)
    target = StreamingTarget(decoder, load_streams(find_drafter("smollm2-135m-streams"), decoder))
    target.set_tree(size=16, depth=3)
    for one in (alone, target):
        one.prefill(prompt, capacity=len(prompt) + NUM_NEW + 17)
    text = [alone.verify(NO_WINDOW).next_token for _ in range(NUM_NEW)]
    found, window, num_passes = [], NO_WINDOW, 0
    while len(found) < NUM_NEW:
        verdict = target.stream(window)
        found += [*window.accepted(verdict), verdict.next_token]
        window, num_passes = verdict.window, num_passes + 1
    assert found[:NUM_NEW] == text
    assert num_passes < NUM_NEW
