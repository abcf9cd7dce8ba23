"""The models of a record come from their folders as a user named them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import fingerprint, load_models
from calibrate.recording.recorder import Recorder
from decoding.errors import ConfigError, ModelError, ModelFormatError
from decoding.messages import Window
from decoding.schedule import MAX_WINDOW
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.drafters.registry import KINDS, Kind
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import load_decoder
from runtime.models.model_folder import NamedFolder
from runtime.target.early_exits import load_exits
from runtime.target.target_model import TargetModel
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_models import tiny_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    target = tiny_target()
    named = NamedFolder("a target", save_target(target, root / "t")), NamedFolder("a draft", root / "d")
    save_draft_of(target, root / "d", exit_features=(1, 2))
    return (*named, NamedFolder("its exits", save_exits_of(target, root / "exits")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_target_draft_and_exits_are_loaded_in_the_type_asked_for(folders, dtype):
    models = load_models(*folders, dtype=dtype)
    assert (models.target_name, models.drafter_name, models.exits_name) == ("a target", "a draft", "its exits")
    assert models.dtype == dtype
    assert models.target.backend.dtype == getattr(torch, dtype)
    assert {weight.dtype for weight in models.draft.parameters()} == {getattr(torch, dtype)}
    assert models.draft.config.exit_features == (1, 2)
    assert models.target.early_exit.trained_layers == (2, 3)


def test_every_back_end_records_the_same_in_float32(folders):
    """Captured calls of a GPU are made by the CPU here."""
    by_torch = load_models(*folders, dtype="float32")
    elsewhere = load_models(*folders, dtype="float32")
    elsewhere.draft.run_on(CudaBackend(elsewhere.draft.decoder, device="cpu"))
    decoder = load_decoder(folders[0].folder, dtype=torch.float32)
    exits = load_exits(folders[2].folder, decoder, dtype=torch.float32)
    captured = TargetModel.of(decoder, exits, backend=CudaBackend(decoder, device="cpu"))
    elsewhere = replace(elsewhere, target=captured, computed_by="cuda")
    prompt, settings = EncodedPrompt("p", "", (5, 17, 3, 44, 8)), Reach(exit_layers=(2, 3), max_new_tokens=12)
    made = [Recorder(models, settings) for models in (by_torch, elsewhere)]
    assert [recorder.assemble([]).backend for recorder in made] == ["torch", "cuda"]
    expected, found = (next(recorder.records([(prompt, 0)])) for recorder in made)
    for name in ("text", "rollouts", "feature_rollouts", "alternatives"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.exits.keys() == expected.exits.keys()
    assert all((found.exits[layer] == ids).all() for layer, ids in expected.exits.items())


def test_an_interrupted_record_of_one_back_end_is_none_of_another(folders):
    by_torch = load_models(*folders, dtype="float32")
    compiled = replace(by_torch, computed_by="openvino:CPU")
    names = {fingerprint(one, (), Reach(exit_layers=())) for one in (by_torch, compiled)}
    assert len(names) == 2


@pytest.mark.parametrize(("temperature", "is_drawn"), [(0.0, False), (0.5, True)])
def test_an_interrupted_record_is_none_of_other_draws(folders, temperature, is_drawn):
    loaded, reach = load_models(*folders, dtype="float32"), Reach(exit_layers=(), temperature=temperature)
    names = {fingerprint(loaded, (), one) for one in (reach, replace(reach, seed=1))}
    assert (len(names) > 1) is is_drawn


def test_whole_numbers_of_numpy_are_those_of_python(folders):
    loaded, numbers = load_models(*folders, dtype="float32"), {"max_new_tokens": 8, "max_window": 4, "seed": 1}
    ours, theirs = (Reach(**{name: kind(value) for name, value in numbers.items()}) for kind in (int, np.int64))
    assert fingerprint(loaded, (), ours) == fingerprint(loaded, (), theirs)


def test_torch_keeps_its_threads_unless_a_number_is_given(folders, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    load_models(*folders, dtype="float32")
    load_models(*folders, dtype="float32", num_threads=3)
    assert list(dict.fromkeys(asked)) == [5, 3]


def test_a_draft_of_another_target_is_refused(folders, tmp_path):
    other = NamedFolder("another", save_target(tiny_target(seed=9), tmp_path / "other"))
    with pytest.raises(ModelError, match="was trained for tiny"):
        load_models(other, *folders[1:], dtype="float32")


@pytest.mark.parametrize("device", ["npu", "cpu0", "openvino:CPU@0"])
def test_what_is_no_device_is_refused_and_not_taken_for_a_lane_of_one(folders, device):
    with pytest.raises(ConfigError, match=f"device '{device}' is not there"):
        load_models(*folders, dtype="float32", device=device)


class RepeatDrafter(WindowDrafter):
    """A user's own: it drafts the last token again, as often as asked."""

    methods = ("prompt_lookup",)

    def prefill(self, prompt, *, schedule, **_):
        self.count, self.last = schedule.num_speculative_tokens, prompt[-1]

    def rollout(self, committed=(), features_TE=None):
        self.last = [self.last, *committed][-1]
        yield 1
        return Window((self.last,) * self.count)

    def timed_step(self, measurement):
        raise NotImplementedError


@pytest.mark.parametrize("max_window", [3, MAX_WINDOW + 1])
def test_a_registered_drafter_of_text_is_recorded_and_replayed(folders, monkeypatch, tmp_path, max_window):
    monkeypatch.setitem(KINDS, "repeats", Kind(lambda *_: RepeatDrafter(), "prompt_lookup"))
    (tmp_path / "config.json").write_text('{"speculators_model_type": "repeats"}')
    models = load_models(folders[0], None, None, heads=[NamedFolder("again", tmp_path)], dtype="float32")
    reach = Reach(exit_layers=(), max_new_tokens=5, max_window=max_window)
    found = next(Recorder(models, reach).records([(EncodedPrompt("p", "", (5, 17, 3)), 0)]))
    width, last = min(max_window, MAX_WINDOW), [3, *found.text.tolist()[:-1]]
    expected = [[token] * width + [-1] * (max_window - width) for token in last]
    assert found.chain_drafts[0].tolist() == expected


def test_what_no_record_can_keep_is_called_by_its_name(folders, monkeypatch, tmp_path):
    monkeypatch.setitem(KINDS, "repeats", Kind(lambda *_: RepeatDrafter()))
    monkeypatch.setattr(RepeatDrafter, "methods", ("block",))
    (tmp_path / "config.json").write_text('{"speculators_model_type": "repeats"}')
    with pytest.raises(ModelFormatError, match="is a RepeatDrafter, not a head of the target or a lookup in its text"):
        load_models(folders[0], None, None, heads=[NamedFolder("again", tmp_path)], dtype="float32")
