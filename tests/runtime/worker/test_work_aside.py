"""What is timed aside between two rounds leaves a sequence's graphs as it found them, so that no round pays for it."""

from types import SimpleNamespace

from runtime.backends.openvino.graph_calls import SegmentCall
from runtime.target.target_model import TargetModel
from runtime.wire.measurement import Measurement
from runtime.worker.timing import MeasureRole
from tests.runtime.reading import IDS, new_backend

ASIDE = Measurement(part="verify", rows=1, context=300, warm_up=1, is_aside=True)
NO_EXITS = SimpleNamespace(add_prompt_tokens=lambda prompt: None)


def test_the_graph_of_single_rows_ends_with_the_size_of_the_sequence_under_way(monkeypatch):
    sizes, call = [], SegmentCall.__call__

    def noted(self, inputs, rows):
        sizes.append(inputs.size)
        call(self, inputs, rows)

    monkeypatch.setattr(SegmentCall, "__call__", noted)
    role, prompt, aside = MeasureRole(channel=None), IDS[:40].tolist(), [(1, 1, 384), (1, 1, 384)]
    role.target = target = TargetModel(new_backend(), NO_EXITS)
    target.prefill(prompt, capacity=100)
    role.measure(ASIDE)
    assert sizes[-2:] == aside
    sizes.clear()
    target.lay_out_again()
    assert sizes == [(1, 1, 256)]
    assert target.cache.cursor == len(prompt) - 1
