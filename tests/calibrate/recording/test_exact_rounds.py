"""In any numeric form: chains write the texts of plain decoding, and the rounds of a replay are the real ones."""

from typing import get_args

import pytest
from numpy.random import default_rng

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_models import load_models
from calibrate.recording.recorder import Recorder, RecordSettings
from decoding.schedule import Schedule
from runtime.models.model_folder import NamedFolder
from sim.cost.cost_model import ConstantCost, PartKind
from sim.world import simulate
from tests.planner.synthetic import machine
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import TinyFolders, save_draft_of, save_exits_of, save_target
from tests.tiny_models import tiny_target

MAX_NEW_TOKENS = 24
PROMPTS = tuple(
    EncodedPrompt(f"of {length}", "", tuple(default_rng(length).integers(3, 61, length).tolist()))
    for length in (1, 5, 52, 60)
)
"""Two of them end on the other side of slot 64."""
EXIT = {"method": "mirror", "root_source": "exit", "exit_layer": 2, "exit_top_k": 3}
CHAINS = {
    "speculative": {"method": "speculative"},
    "speculative with features": {"method": "speculative", "exit_features": True},
    "mirror from the exit": EXIT,
    "mirror from the draft": {"method": "mirror", "root_source": "draft", "draft_top_k": 3},
    "hybrid mirror": EXIT | {"root_source": "hybrid", "draft_top_k": 2},
    "mirror with features": EXIT | {"exit_features": True},
}
FORMS = [("cpu", "bfloat16"), ("cpu", "float32"), ("openvino:CPU", "bfloat16"), ("openvino:CPU", "int8")]
COST = ConstantCost(seconds_by_kind=dict.fromkeys(get_args(PartKind), 1e-3))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, target = tmp_path_factory.mktemp("tiny"), tiny_target()
    return TinyFolders(
        decoder=target,
        target=save_target(target, root / "target"),
        drafter=save_draft_of(target, root / "drafter"),
        feature_drafter=save_draft_of(target, root / "feature_drafter", exit_features=(1, 2)),
        exits=save_exits_of(target, root / "exits"),
    )


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled graphs of tests are kept apart from a user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=FORMS, ids="-".join)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def lanes(form):
    """Of the target and of the draft."""
    device, _ = form
    return ("big", "small") if device == "cpu" else (f"{device}@0", f"{device}@1")


@pytest.fixture(scope="module")
def engine(folders, form, lanes):
    with thread_engine(folders.target, lanes=lanes, dtype=form[1], exits_folder=folders.exits) as engine:
        yield engine


@pytest.fixture(scope="module")
def records(folders, form):
    """Of the draft without features and of the one with them."""

    def record(drafter):
        target, draft = NamedFolder("tiny", folders.target), NamedFolder("draft", drafter)
        models = load_models(target, draft, folders.exits, device=form[0], dtype=form[1])
        recorder = Recorder(models, RecordSettings(exit_layers=(2,), max_new_tokens=MAX_NEW_TOKENS, max_window=4))
        return recorder.assemble([recorder.record(prompt) for prompt in PROMPTS])

    return {drafter: record(drafter) for drafter in (folders.drafter, folders.feature_drafter)}


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("name", CHAINS)
def test_rounds_and_texts_are_those_recorded_to_the_last_token(engine, folders, lanes, records, name, window) -> None:
    fields = CHAINS[name] | {"num_speculative_tokens": window}
    drafter = folders.feature_drafter if fields.get("exit_features") else folders.drafter
    real = Schedule(**fields, target_lane=lanes[0], draft_lane=lanes[1], drafter=str(drafter))
    asked = Schedule(**fields, target_lane="target", draft_lane="draft")
    costs = dict.fromkeys(("target", "draft"), COST)  # rounds do not depend on times
    simulated = simulate(asked, machine(), records[drafter], costs=costs)
    for prompt, recorded, trace in zip(PROMPTS, records[drafter].prompts, simulated, strict=True):
        found = engine.generate(real, prompt.ids, max_new_tokens=MAX_NEW_TOKENS)
        assert list(found.tokens) == recorded.text.tolist()
        assert [entry[2:] for entry in found.trace.rounds] == [entry[2:] for entry in trace.rounds]


def test_plain_decoding_writes_the_recorded_texts(engine, lanes, records, folders) -> None:
    plain = Schedule(method="autoregressive", target_lane=lanes[0])
    texts = [list(engine.generate(plain, prompt.ids, max_new_tokens=MAX_NEW_TOKENS).tokens) for prompt in PROMPTS]
    assert texts == [entry.text.tolist() for entry in records[folders.drafter].prompts]


def test_the_lane_says_that_its_target_is_row_invariant(engine, lanes) -> None:
    assert engine.is_row_invariant(lanes[0]) is True
