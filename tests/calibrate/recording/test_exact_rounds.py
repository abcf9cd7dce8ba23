"""In any numeric form: chains write the texts of plain decoding, and the rounds of a replay are the real ones."""

from dataclasses import replace

import pytest
import torch
from numpy.random import default_rng

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import load_models
from calibrate.recording.recorder import Recorder
from costs.round_plan import step_rows
from decoding.schedule import Schedule
from decoding.trace import Trace, Work
from runtime.drafters.language_model.folder import StreamConfig, add_streams, load_draft
from runtime.models.model_folder import NamedFolder
from sim.acceptance.replay import Replay
from sim.world import simulate
from tests.costs.constant_cost import MILLISECONDS
from tests.planner.synthetic import machine
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_all, save_draft_of
from tests.tiny_models import tiny_target

pytestmark = pytest.mark.usefixtures("own_cache")
MAX_NEW_TOKENS = 16
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
COMPILED = [("openvino:CPU", "bfloat16")]
FORMS = [("cpu", "bfloat16"), ("cpu", "float32"), *COMPILED]
STREAMING = {f"{name}, streams": fields | {"draft_streams": 2} for name, fields in CHAINS.items()}
NO_STREAMS = "streams look at keys, which compiled lanes do not show"


def save_streaming_draft_of(target, folder, **options):
    """A draft whose streams are right now and then, by chance."""
    plain = save_draft_of(target, folder.with_name(f"{folder.name}_plain"), **options)
    draft = load_draft(plain, target, dtype=torch.float32)
    sizes = StreamConfig(num_streams=2, start_layer=2, rank=2)
    draft.config = replace(draft.config, streams=sizes)
    torch.manual_seed(3)
    for weight in draft.add_streams().trained.values():
        torch.nn.init.normal_(weight, std=0.05)
    add_streams(plain, draft.streams, folder, training={})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of three layers, as many as exits, features and streams are apart in."""
    target, root = tiny_target(num_layers=3), tmp_path_factory.mktemp("tiny")
    return save_all(target, root, save_draft=save_streaming_draft_of, exit_layers=(2,))


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
    return {drafter: record(folders, form, drafter) for drafter in (folders.drafter, folders.feature_drafter)}


def record(folders, form, drafter, **settings):
    target, draft = NamedFolder("tiny", folders.target), NamedFolder("draft", drafter)
    models = load_models(target, draft, NamedFolder("exits", folders.exits), device=form[0], dtype=form[1])
    reach = {"exit_layers": (2,), "max_new_tokens": MAX_NEW_TOKENS, "max_window": 4}
    recorder = Recorder(models, Reach(**reach | settings))
    return recorder.assemble([next(recorder.records([(prompt, 0)])) for prompt in PROMPTS])


def same_rounds(engine, lanes, recorded, drafter, **fields) -> list[Trace]:
    """Traces of all prompts, whose texts and rounds are those recorded."""
    real = Schedule(**fields, target_lane=lanes[0], draft_lane=lanes[1], drafter=str(drafter))
    asked = Schedule(**fields, target_lane="target", draft_lane="draft")
    costs = dict.fromkeys(("target", "draft"), MILLISECONDS)  # rounds do not depend on times
    simulated, traces = simulate(asked, machine(), recorded, costs=costs), []
    for prompt, of_prompt, trace in zip(PROMPTS, recorded.prompts, simulated, strict=True):
        found = engine.generate(real, prompt.ids, max_new_tokens=MAX_NEW_TOKENS)
        assert list(found.tokens) == of_prompt.text.tolist()
        assert [entry[2:] for entry in found.trace.rounds] == [entry[2:] for entry in trace.rounds]
        traces.append(found.trace)
    return traces


@pytest.mark.parametrize("name", CHAINS)
def test_rounds_and_texts_are_those_recorded_to_the_last_token(engine, form, folders, lanes, records, name):
    """Of compiled graphs, which take their time, one window."""
    fields = CHAINS[name]
    drafter = folders.feature_drafter if fields.get("exit_features") else folders.drafter
    for window in (4,) if form in COMPILED else (1, 4):
        same_rounds(engine, lanes, records[drafter], drafter, num_speculative_tokens=window, **fields)


@pytest.mark.parametrize("form", COMPILED, indirect=True, ids="-".join)
def test_a_draft_with_streams_of_its_own_drafts_without_them_where_keys_are_not_open(
    engine, form, lanes, folders, records
):
    assert records[folders.feature_drafter].num_streams == 0
    fields = CHAINS["mirror with features"] | {"num_speculative_tokens": 3}
    same_rounds(engine, lanes, records[folders.feature_drafter], folders.feature_drafter, **fields)


def test_a_sampled_text_is_that_of_plain_sampling_in_the_lane(engine, form, lanes, folders):
    recorded = record(folders, form, folders.feature_drafter, temperature=1.0, seed=5)
    plain = Schedule(method="autoregressive", target_lane=lanes[0], verification="match")
    for prompt, of_prompt in zip(PROMPTS, recorded.prompts, strict=True):
        found = engine.generate(plain, prompt.ids, max_new_tokens=MAX_NEW_TOKENS, temperature=1.0, seed=5)
        assert list(found.tokens) == of_prompt.text.tolist()
        assert of_prompt.feature_draft_acceptance.shape == of_prompt.feature_rollouts.shape
        assert of_prompt.feature_draft_acceptance.max() > 0


@pytest.mark.parametrize("name", STREAMING)
def test_with_streams_rounds_and_the_steps_of_windows_are_those_recorded(engine, form, lanes, folders, records, name):
    """How many of them branches did before they were asked for is a matter of time; what is left then is not."""
    if form in COMPILED:
        pytest.skip(NO_STREAMS)
    fields = STREAMING[name] | {"num_speculative_tokens": 4}
    drafter = folders.feature_drafter if fields.get("exit_features") else folders.drafter
    schedule = Schedule(**fields, target_lane=lanes[0], draft_lane=lanes[1], drafter=str(drafter))
    guessed_rows = Replay(records[drafter]).outcomes(schedule, None).guessed_rows
    of_branches = {1, *step_rows(schedule, sum(schedule.exit_roots_per_row)).values()}
    lengths = set()
    for number, trace in enumerate(same_rounds(engine, lanes, records[drafter], drafter, **fields)):
        position = sum(len(one.text) for one in records[drafter].prompts[:number])
        for index, entry in enumerate(trace.rounds):
            drafted = [span for span in trace.spans if span.round == index and span.lane == lanes[1]]
            asked_for = tuple(span.rows for span in drafted if span.work in (Work.ROLLOUT_STEP, Work.FINISH_STEP))
            recorded = tuple(rows for rows in guessed_rows[position] if rows)
            # a window from its beginning, or what branches have left of it
            assert asked_for[1:] == recorded or asked_for in [recorded[done:] for done in range(len(recorded) + 1)]
            if schedule.root_source != "hybrid":  # there both may name the same roots
                assert {span.rows for span in drafted if span.work is Work.BRANCH_STEP} <= of_branches
            position += entry.num_committed
            lengths.add(len(recorded))
    assert len(lengths) > 1, "some guesses are right and some wrong"


def test_plain_decoding_writes_the_recorded_texts(engine, lanes, records, folders):
    plain = Schedule(method="autoregressive", target_lane=lanes[0])
    texts = [list(engine.generate(plain, prompt.ids, max_new_tokens=MAX_NEW_TOKENS).tokens) for prompt in PROMPTS]
    assert texts == [entry.text.tolist() for entry in records[folders.drafter].prompts]


def test_the_lane_says_that_its_target_is_row_invariant(engine, lanes):
    assert engine.row_invariance(lanes[0]).is_invariant
