"""The fewest rows that keep their bits are found once for a CPU and a model, whatever process asks."""

import pytest

from runtime.backends.openvino import compiled_decoder
from runtime.backends.openvino.disk_cache import compiled_folder
from runtime.backends.self_test import PROBED_ROWS, is_row_invariant, row_floor
from tests.runtime.reading import compiled, prepare
from tests.tiny_models import tiny_target

CPU = ["model name : A CPU", "flags : avx2"]
FOUND = 4


@pytest.fixture
def probes(monkeypatch, empty_cache):
    """Probes of decoders so far, each of which found so many rows; nothing is kept yet."""
    found = []

    def probe(_):
        found.append(FOUND)
        return FOUND

    monkeypatch.setattr(compiled_decoder, "row_floor", probe)
    monkeypatch.setattr(compiled_decoder, "chosen_by", lambda: CPU)
    return found


@pytest.fixture
def decoder():
    return tiny_target(max_position=400)


def floor_of(decoder, form="bfloat16"):
    return prepare(compiled(decoder, form)).least_rows


def test_another_decoder_of_the_same_weights_reads_what_was_found(probes, decoder):
    assert [floor_of(decoder), floor_of(decoder)] == [FOUND, FOUND]
    assert len(probes) == 1


def test_another_form_other_weights_another_cpu_and_other_settings_are_probed(probes, decoder, monkeypatch):
    floor_of(decoder)
    floor_of(decoder, "float32")
    decoder.layers[0].down.weight.data += 1.0
    floor_of(decoder)
    decoder.lm_head.weight.data += 1.0
    floor_of(decoder)
    monkeypatch.setattr(compiled_decoder, "chosen_by", lambda: [*CPU, "ONEDNN_MAX_CPU_ISA=AVX2"])
    floor_of(decoder)
    assert len(probes) == 5
    floor_of(decoder)
    assert len(probes) == 5


def test_a_cpu_of_which_nothing_is_known_is_probed_every_time(probes, decoder, monkeypatch):
    monkeypatch.setattr(compiled_decoder, "chosen_by", list)
    assert [floor_of(decoder), floor_of(decoder)] == [FOUND, FOUND]
    assert len(probes) == 2


@pytest.mark.parametrize("most", [16, 64])
def test_models_of_few_positions_are_probed_and_tested_too(most, empty_cache, monkeypatch):
    probed = []

    def probe(read):
        probed.append((read(PROBED_ROWS[-1]).shape[1], row_floor(read)))
        return probed[-1][1]

    monkeypatch.setattr(compiled_decoder, "row_floor", probe)
    backend = prepare(compiled(tiny_target(max_position=most), "bfloat16"), num_slots=most, num_prompt=1)
    assert probed == [(PROBED_ROWS[-1], backend.least_rows)]
    assert is_row_invariant(backend)


def test_a_damaged_file_costs_a_probe(probes, decoder):
    floor_of(decoder)
    [file] = compiled_folder().iterdir()
    file.write_bytes(file.read_bytes()[::-1])
    assert floor_of(decoder) == FOUND
    assert len(probes) == 2
