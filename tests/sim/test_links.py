"""What crosses a link costs what a closed form says, for every method and every kind of message, in both worlds.

Lanes leave each other alone here, and parts cost the same for any rows: so times differ by messages alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.trace import Trace, Work
from hwprofiles.profile import LinkProfile, Profile
from sim.acceptance.replay import Acceptance
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.worlds.at_random import records, schedules
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import TREES, drawn, prompt, record
from tests.sim.worlds.schedules import lookup, mirror, speculative, tree

STATE_BYTES = 100
TOLERANCE_S = 1e-9
LINKS = [(0.25, 64.0), (0.25, 32.0), (1.25, 64.0), (0.0, 1e6)]
"""Latency and bandwidth: something, half of its bandwidth, a second more of latency, next to nothing."""
TEXTS = drawn(0.6, 0.5, num_tokens=30, num_prompts=2)


def linked(latency_s: float | None, bytes_per_s: float = 1.0, *, draft_step: float = 0.01) -> Profile:
    """Both lanes, and a link between them; a draft that is ready long before the target."""
    link = LinkProfile(lanes=("target", "draft"), latency_s=latency_s or 0.0, bytes_per_s=bytes_per_s, source="by hand")
    draft = lane("draft", draft_step=draft_step, draft_step_features=draft_step, head_step=draft_step)
    links = () if latency_s is None else (link,)
    return machine(lane("target"), draft, links=links, features_bytes_per_row=STATE_BYTES, round_overhead_s=0.5)


def decode_s(schedule: Schedule, profile: Profile, texts: Acceptance) -> float:
    """By both simulators, which agree."""
    played = sum(trace.decode_s for trace in simulate(schedule, profile, texts, trace=False))
    assert predict(schedule, profile, texts).decode_s == pytest.approx(played, abs=TOLERANCE_S)
    return played


def crossing_s(schedule: Schedule, traces: list[Trace], latency_s: float, bytes_per_s: float) -> float:
    """Windows of all rounds, and verdicts of all but the last of a text: nothing else waits for the link."""
    has_states = schedule.reads_features and schedule.method != "mirror"
    num_bytes, num_messages = 0, 0
    for trace in traces:
        num_bytes += sum(8 * entry.num_drafted for entry in trace.rounds)
        num_messages += 2 * len(trace.rounds) - 1
        for entry in trace.rounds[:-1]:
            num_bytes += 8 + schedule.is_tree * 4 * entry.num_accepted
            num_bytes += has_states * STATE_BYTES * (entry.num_accepted + 1)
    return num_messages * latency_s + num_bytes / bytes_per_s


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), LINKS)
@pytest.mark.parametrize(
    "schedule",
    [
        speculative(3),
        speculative(3, exit_features=True),
        mirror("draft", num_tokens=3),
        mirror("draft", num_tokens=3, draft_top_k=4),
        tree(TREES[0], 7),
        tree(TREES[3], 5),
        tree(TREES[4], 6),
    ],
    ids=lambda schedule: f"{schedule.method}{' with states' * schedule.reads_features}{schedule.draft_top_k or ''}",
)
def test_windows_verdicts_and_states_pay_for_the_link(schedule, latency_s, bytes_per_s):
    free_s = decode_s(schedule, linked(None), TEXTS)
    expected_s = free_s + crossing_s(schedule, simulate(schedule, linked(None), TEXTS), latency_s, bytes_per_s)
    assert decode_s(schedule, linked(latency_s, bytes_per_s), TEXTS) == pytest.approx(expected_s, abs=TOLERANCE_S)


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), LINKS)
@given(records())
@settings(max_examples=20, deadline=None)
def test_windows_of_any_length_pay_for_what_they_hold(latency_s, bytes_per_s, texts):
    schedule = lookup(4, draft_lane="draft")
    free_s = decode_s(schedule, linked(None), texts)
    expected_s = free_s + crossing_s(schedule, simulate(schedule, linked(None), texts), latency_s, bytes_per_s)
    assert decode_s(schedule, linked(latency_s, bytes_per_s), texts) == pytest.approx(expected_s, abs=TOLERANCE_S)


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), LINKS)
@pytest.mark.parametrize("features", [False, True])
def test_an_exit_message_delays_the_branches_that_wait_for_it(features, latency_s, bytes_per_s):
    """All hits, of a draft that the target waits for: a round is the prefix, its message, all steps, the window.

    The verdict comes while branches are at work, so its way is hidden.
    """
    texts = drawn(0.6, 1.0, num_tokens=30)
    schedule = mirror("exit", num_tokens=3, exit_top_k=2, exit_features=features)
    profiles = (linked(None, draft_step=40.0), linked(latency_s, bytes_per_s, draft_step=40.0))
    [trace] = simulate(schedule, profiles[0], texts)
    exit_bytes = 4 * (3 * 8 + features * STATE_BYTES)
    message_s, window_s = latency_s + exit_bytes / bytes_per_s, latency_s + 3 * 8 / bytes_per_s
    first_s = 3 * 40 + window_s  # and a last round, of which the target's time is all that counts
    round_s = 4 + 1 + message_s + 3 * 40 + window_s + (0.0 if features else max(0.0, 40.0 - (5 + message_s)))
    expected_s = first_s + (len(trace.rounds) - 1) * round_s + 12 + 0.5
    assert decode_s(schedule, profiles[1], texts) == pytest.approx(expected_s, abs=TOLERANCE_S)


def test_every_message_is_a_span_on_the_track_of_its_link():
    profile = machine(
        *map(lane, ("target", "draft", "host")),
        links=(
            LinkProfile(lanes=("target", "host"), latency_s=0.5, bytes_per_s=64, source=""),
            LinkProfile(lanes=("host", "draft"), latency_s=0.25, bytes_per_s=32, source=""),
        ),
    )
    [trace] = simulate(speculative(2), profile, record(prompt("10")))
    assert [span[:4] for span in trace.spans if span.work is Work.TRANSFER] == [
        ("draft->host", Work.TRANSFER, 2.0, 2.0 + 0.5 + 0.25),
        ("host->target", Work.TRANSFER, 2.75, 2.75 + 0.25 + 0.5),
    ]


@given(
    schedules(method="mirror", drawn=True),
    st.floats(0.01, 20),
    st.just(0.0) | st.floats(1e-9, 20),
    st.floats(1, 1e3),
    st.floats(1, 8),
    st.floats(0, 1),
    st.floats(0, 1),
)
@settings(deadline=None)
def test_a_wider_or_nearer_link_costs_mirror_at_most_a_step_per_round(
    schedule, step_s, latency_s, bytes_per_s, factor, rate, hit_rate
):
    """A message that comes sooner moves the boundaries after it: a verdict may just have missed one."""
    texts = drawn(rate, hit_rate, num_tokens=30)
    known = predict(schedule, linked(latency_s, bytes_per_s, draft_step=step_s), texts)
    for better in (latency_s, bytes_per_s * factor), (latency_s / factor, bytes_per_s):
        found = predict(schedule, linked(*better, draft_step=step_s), texts)
        assert found.decode_s <= known.decode_s + found.num_rounds * step_s + TOLERANCE_S
