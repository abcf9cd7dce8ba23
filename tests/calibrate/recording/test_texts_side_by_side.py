"""Texts written side by side, held against each of them written alone: every array the same to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording import recorded_text
from calibrate.recording.recorded_text import TextWriter, WantedText
from calibrate.recording.recorder import Recorder, record_acceptance
from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.eager import EagerBackend
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.models.decoder import load_decoder
from runtime.models.default_model import embedded_folder, is_present
from runtime.verification.rules import GREEDY, Sampling
from tests.calibrate.recording.test_recorder import PROMPTS, SETTINGS, models
from tests.runtime.reading import compiled, first_layers
from tests.tiny_models import tiny_target

SAMPLED = Sampling("match", 3.0, 5)
"""So warm that the first layers alone, whose greedy texts are much alike, write texts of their own."""
LENGTHS = (40, 270, 63, 130)
LAYERS = (4, 1, 6)
NUM_TOKENS = 6


def wanted(vocab_size, lengths, sampling):
    """Random prompts; the first of them twice, where draws tell the texts apart."""
    texts = []
    for seed, length in enumerate(lengths):
        prompt = np.random.default_rng(seed).integers(3, vocab_size, length).tolist()
        texts.append(WantedText(prompt, sampling))
    return [*texts, WantedText(texts[0].prompt, sampling._replace(seed=sampling.seed + 1))]


def alone(backend, text, layers, num_tokens):
    return TextWriter(backend, max_new_tokens=num_tokens, layers=layers).alone(text)


def assert_same(one, other):
    assert (one.tokens, one.margins) == (other.tokens, other.margins)
    assert one.states.keys() == other.states.keys()
    assert all(bool((rows == other.states[layer]).all()) for layer, rows in one.states.items())
    assert np.array_equal(one.probabilities, other.probabilities)


@pytest.fixture(params=["torch", "bfloat16", "int8"])
def backend(request):
    decoder = first_layers(load_decoder(embedded_folder(), dtype=torch.bfloat16))
    return EagerBackend(decoder) if request.param == "torch" else compiled(decoder, request.param)


@pytest.mark.skipif(not is_present(), reason="the embedded model has not been fetched")
def test_texts_of_a_real_model_are_those_written_alone(backend):
    """Prompts of all lengths, greedy and sampled in turn, some with an early end."""
    texts = wanted(backend.config.vocab_size, LENGTHS, SAMPLED)
    texts = [text._replace(sampling=GREEDY) if number % 2 else text for number, text in enumerate(texts)]
    ends = (alone(backend, texts[number], (), 3).tokens[number % 3] for number in (0, 2))
    backend.config = replace(backend.config, eos_token_ids=tuple(ends))
    expected = [alone(backend, text, LAYERS, NUM_TOKENS) for text in texts]
    assert {len(text.tokens) for text in expected} >= {1, 3, NUM_TOKENS}
    for text, found in zip(expected, side_by_side(backend, texts, LAYERS, NUM_TOKENS), strict=True):
        assert_same(text, found)


@pytest.mark.skipif(not is_present(), reason="the embedded model has not been fetched")
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_text_beside_one_that_grows_beyond_1024_positions_is_that_written_alone(form):
    """Longer buffers are summed otherwise: the second text needs one from its 17th token on."""
    decoder = first_layers(load_decoder(embedded_folder(), dtype=torch.bfloat16))
    backend = compiled(decoder, form)
    texts = wanted(backend.config.vocab_size, (600, 975), SAMPLED)[:2]
    found = list(TextWriter(backend, max_new_tokens=24, layers=LAYERS).write(texts))
    for text, own in zip(texts, found, strict=True):
        assert_same(alone(backend, text, LAYERS, 24), own)


@pytest.mark.skipif(not is_present(), reason="the embedded model has not been fetched")
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_text_that_passes_512_positions_beside_a_long_one_is_that_written_alone(form):
    """What a CPU sums in blocks of 512 is alike in both memories until then: asking at first tells nothing."""
    backend = compiled(first_layers(load_decoder(embedded_folder(), dtype=torch.bfloat16)), form)
    texts = wanted(backend.config.vocab_size, (480, 1382, 500), GREEDY)[:3]
    writer = TextWriter(backend, max_new_tokens=64, layers=LAYERS)
    assert [len(group) for group in writer.groups([*texts, texts[0]])] == [1, 1, 2]
    for text, own in zip(texts, writer.write(texts), strict=True):
        assert_same(alone(backend, text, LAYERS, 64), own)


def side_by_side(backend, texts, layers, num_tokens):
    """In one group, of which none is written alone."""
    writer = TextWriter(backend, max_new_tokens=num_tokens, layers=layers)
    assert len(list(writer.groups(texts))) == 1
    found = list(writer.write(texts))
    assert writer.rows_are_alike
    return found


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_prompt_of_one_token_is_written_next_to_long_ones(sampling):
    backend = EagerBackend(tiny_target())
    texts = wanted(61, (1, 70, 3), sampling)
    for text, found in zip(texts, side_by_side(backend, texts, (1, 3), 12), strict=True):
        assert_same(alone(backend, text, (1, 3), 12), found)


def test_a_text_keeps_its_keys_where_shorter_ones_are_written_on_a_gpu():
    """Rows that a call over few slots does not compute go to its last slot, which a longer text has filled."""
    backend = CudaBackend(tiny_target(max_position=700), device="cpu")
    texts = wanted(61, (5, 250, 500), GREEDY)
    for text, found in zip(texts, side_by_side(backend, texts, (1, 3), 20), strict=True):
        assert_same(alone(backend, text, (1, 3), 20), found)


def test_a_text_that_has_ended_leaves_its_row_to_the_next(monkeypatch):
    monkeypatch.setattr(recorded_text, "_MOST_ROWS", 2)
    backend = EagerBackend(tiny_target())
    texts = wanted(61, (9, 5, 30, 70, 1), GREEDY)
    ends = {alone(backend, text, (), 4).tokens[2] for text in texts[:2]}
    backend.config = replace(backend.config, eos_token_ids=tuple(ends))
    found = side_by_side(backend, texts, (1, 3), 12)
    assert len({len(text.tokens) for text in found}) > 1
    for text, own in zip(texts, found, strict=True):
        assert_same(alone(backend, text, (1, 3), 12), own)


def test_where_rows_are_not_alike_each_text_is_written_alone():
    target = tiny_target()
    normalise = target.normalise
    target.normalise = lambda x: normalise(x) * (1 + 1e-3 * (len(x) - 1))
    writer, texts = TextWriter(EagerBackend(target), max_new_tokens=12, layers=(1,)), wanted(61, (9, 5), GREEDY)
    for text, found in zip(texts, writer.write(texts), strict=True):
        assert_same(alone(EagerBackend(target), text, (1,), 12), found)
    assert not writer.rows_are_alike


@pytest.mark.parametrize("lengths", [(100, 215), (215, 216, 100)], ids=["grows", "begins in grown memory"])
def test_texts_are_written_alone_where_larger_memory_changes_their_bits(lengths, monkeypatch):
    """As it does on some CPUs beyond 1,024 positions; here at the first limit, 223."""
    monkeypatch.setattr(recorded_text, "_MOST_ROWS", 2)
    run = CompiledDecoder._run

    def other_bits(self, x_BTD, segment, states, positions, rows):
        more = 1 + 1e-3 * (rows.buffer.slots.shape[-2] > 256)
        return [found * more for found in run(self, x_BTD, segment, states, positions, rows)]

    monkeypatch.setattr(CompiledDecoder, "_run", other_bits)
    backend, texts = compiled(tiny_target(max_position=400), "float32"), wanted(61, lengths, SAMPLED)[: len(lengths)]
    backend.config = replace(backend.config, eos_token_ids=())
    writer = TextWriter(backend, max_new_tokens=20, layers=(1, 3))
    for text, found in zip(texts, writer.write(texts), strict=True):
        assert_same(alone(backend, text, (1, 3), 20), found)
    assert not writer.rows_are_alike


def test_groups_fit_in_memory(monkeypatch):
    writer, texts = (
        TextWriter(EagerBackend(tiny_target()), max_new_tokens=12, layers=(1,)),
        wanted(61, [9] * 20, GREEDY),
    )
    assert [len(group) for group in writer.groups(texts)] == [16, 5]
    monkeypatch.setattr(recorded_text, "_MOST_BYTES", 3.5 * writer.num_bytes(texts[:1]))
    longer = [*texts[:4], *wanted(61, [60], GREEDY)[:1], texts[4]]
    assert [len(group) for group in writer.groups(longer)] == [3, 1, 1, 1]


def test_records_of_texts_written_side_by_side_are_those_of_texts_written_alone(tmp_path):
    for settings in (SETTINGS, replace(SETTINGS, temperature=0.8, num_texts=3)):
        made = record_acceptance(models(), PROMPTS, settings, tmp_path / "r.npz")
        recorder = Recorder(models(), settings)
        numbers = range(settings.num_texts)
        recorder.assemble(
            [next(recorder.records([(prompt, number)])) for prompt in PROMPTS for number in numbers]
        ).save(tmp_path / "alone.npz")
        with np.load(tmp_path / "r.npz") as one, np.load(tmp_path / "alone.npz") as other:
            assert one.files == other.files
            assert all(np.array_equal(one[name], other[name]) for name in one.files)
        assert AcceptanceRecord.load(tmp_path / "r.npz").prompts[0].name == made.prompts[0].name


def test_texts_that_are_finished_survive_an_interruption_of_the_others_of_their_group(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_text, "_MOST_ROWS", 2)
    whole = record_acceptance(models(), PROMPTS, SETTINGS, tmp_path / "whole.npz")
    step, out, steps = TextWriter._step, tmp_path / "r.npz", []

    def interrupted(self, texts, branches):
        if list(texts[-1].prompt) == list(PROMPTS[-1].ids):  # those before the last two have ended
            steps.append(texts)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(self, texts, branches)

    monkeypatch.setattr(TextWriter, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record_acceptance(models(), PROMPTS, SETTINGS, out)
    [left] = tmp_path.glob(".r.npz.*.npz")
    assert [one.name for one in AcceptanceRecord.load(left).prompts] == [one.name for one in whole.prompts[:2]]
    monkeypatch.setattr(TextWriter, "_step", step)
    record_acceptance(models(), PROMPTS, SETTINGS, out)
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_written(tmp_path):
    steps = []
    long = EncodedPrompt("the long one", "", tuple(range(3, 60)) * 3)
    with pytest.raises(ConfigError, match=r"prompt the long one: 171 tokens of prompt, 12 new ones .* has 128"):
        record_acceptance(models(), [*PROMPTS, long], SETTINGS, tmp_path / "r.npz", lambda step, _: steps.append(step))
    assert steps == [PROMPTS[0].name]
    assert not list(tmp_path.iterdir())
