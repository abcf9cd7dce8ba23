"""Trees through engine, lanes and messages: any tree gives the text of plain decoding."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.drafters import registry as drafter_kinds
from tests.runtime import plain
from tests.runtime.engine.schedules import NEAR_TIE, PROMPT
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tree_doubles import TreeDrafter
from tests.tiny_models import EOS, VOCAB_SIZE


@pytest.fixture(scope="module")
def folders(tiny_folders, tmp_path_factory):
    """By name: folders whose kinds are the doubles'."""
    root = tmp_path_factory.mktemp("doubles")
    for name in ("trees", "raw"):
        (root / name).mkdir()
        (root / name / "config.json").write_text(f'{{"speculators_model_type": "{name}"}}')
    return root


@pytest.fixture(scope="module")
def engine(tiny_folders, folders):
    decoder = tiny_folders.decoder
    doubles = {
        "trees": lambda folder, context: TreeDrafter(decoder),
        "raw": lambda folder, context: TreeDrafter(decoder, raw_features=True),
    }
    with pytest.MonkeyPatch.context() as patch, thread_engine(tiny_folders.target) as engine:
        for name, load in doubles.items():
            patch.setitem(drafter_kinds.KINDS, name, drafter_kinds.Kind(load))
        yield engine


def schedule_of(folders, drafter="trees", *, draft_lane="small", **options):
    fields = {"num_speculative_tokens": 4, "tree_size": 10} | options
    return Schedule(method="medusa", target_lane="big", draft_lane=draft_lane, drafter=str(folders / drafter), **fields)


@pytest.fixture
def run(engine, folders):
    """Decode; options of `generate`, and of the schedule."""

    def run(prompt=PROMPT, max_new_tokens=24, **options):
        names = ("temperature", "seed", "eos_token_ids", "listener")
        of_engine = {name: options.pop(name) for name in names if name in options}
        return engine.generate(schedule_of(folders, **options), prompt, max_new_tokens=max_new_tokens, **of_engine)

    return run


@pytest.mark.parametrize("draft_lane", ["small", "big"])
@pytest.mark.parametrize("drafter", ["trees", "raw"])
@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
    max_new_tokens=st.integers(1, 30),
    tree_size=st.integers(4, 24),
)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(
    run, tiny_folders, draft_lane, drafter, *, prompt, max_new_tokens, tree_size
):
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = run(prompt, max_new_tokens, drafter=drafter, draft_lane=draft_lane, tree_size=tree_size)
    assert list(found.tokens) == expected
    assert found.trace.events == []


def test_the_trace_tells_trees_as_it_tells_chains(run):
    trace = run().trace
    assert sum(entry.num_committed for entry in trace.rounds) == 24
    verified = [span for span in trace.spans if span.work is Work.VERIFY]
    assert [span.rows for span in verified] == [entry.num_drafted + 1 for entry in trace.rounds]
    assert [span.round for span in verified] == list(range(len(trace.rounds)))
    assert max(entry.num_accepted for entry in trace.rounds) >= 3
    assert max(entry.num_drafted for entry in trace.rounds) == 10
