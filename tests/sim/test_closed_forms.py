"""Where theory has a formula, the simulator gives its number."""

import pytest

from hwprofiles.profile import Profile
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.evaluator import predict
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import drawn
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative

VERIFY_S = 11.0


def with_step(step_s: float, **fields: float) -> Profile:
    return machine(lane("target"), lane("draft", draft_step=step_s), **fields)


@pytest.mark.parametrize("num_tokens", [1, 4, 8])
@pytest.mark.parametrize("step_s", [0.25, 2.0])
def test_speed_up_of_synchronous_decoding(num_tokens, step_s):
    """E / (v + d) over plain decoding, here with everything accepted: E = g + 1."""
    acceptance = drawn(1, 0, num_tokens=9 * 5 * 2)
    plain = predict(AUTOREGRESSIVE, with_step(step_s), acceptance)
    sync = predict(speculative(num_tokens), with_step(step_s), acceptance)
    expected = (num_tokens + 1) * VERIFY_S / (VERIFY_S + num_tokens * step_s)
    assert plain.tpot_s / sync.tpot_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("hit_rate", [0.0, 0.4, 1.0])
def test_mirror_hides_all_drafting_but_that_of_misses(hit_rate):
    """Zero-slope region: as long as the branches end before the target, a hit costs the target's time only."""
    num_tokens, step_s, num_prompts = 4, 2.0, 5
    acceptance = drawn(0.7, hit_rate, num_tokens=200, num_prompts=num_prompts)
    found = predict(mirror("draft", num_tokens=num_tokens), with_step(step_s), acceptance)
    num_asked = found.num_rounds - num_prompts
    num_misses = round((1 - found.reuse_rate) * num_asked)
    exposed_s = (num_prompts + num_misses) * num_tokens * step_s
    assert found.decode_s == pytest.approx(found.num_rounds * VERIFY_S + exposed_s, abs=1e-9)
    assert found.exposed_draft_s == pytest.approx(exposed_s, abs=1e-9)
    assert found.hidden_draft_s == pytest.approx(found.num_rounds * (num_tokens + 1) * step_s, abs=1e-9)
    assert found.bottlenecks.fallback == pytest.approx(num_misses * num_tokens * step_s, abs=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_a_single_chain_pays_for_a_window_whenever_its_guess_was_wrong(rate, num_tokens):
    """E / (v + (1 - a^(g+1)) d): the draft goes on from its own window alone, as in PEARL (arXiv 2408.11850).

    PEARL's other half, the first token verified while the others are drafted, is no method here. The branch reads its
    root too, so a step of a (g+1)-th of a verification makes it just in time.
    """
    step_s = VERIFY_S / (num_tokens + 1)
    texts = Texts(num_texts=20, num_tokens=2000, prompt_length=8)
    chain = mirror("draft", num_tokens=num_tokens, roots_per_row=(0,) * num_tokens + (1,))
    found = predict(chain, with_step(step_s), Bernoulli(rate, texts=texts, alternative_rates=(0.0,)))
    num_misses = round((1 - found.reuse_rate) * (found.num_rounds - texts.num_texts))
    drafting_s = num_tokens * step_s
    expected_s = found.num_rounds * VERIFY_S + (texts.num_texts + num_misses) * drafting_s
    assert found.decode_s == pytest.approx(expected_s, rel=1e-12)
    whole = rate ** (num_tokens + 1)
    length = sum(rate**place for place in range(num_tokens + 1))
    assert found.num_tokens / found.decode_s == pytest.approx(length / (VERIFY_S + (1 - whole) * drafting_s), rel=0.02)


@pytest.mark.parametrize("draft_share", [0.1, 0.5, 0.8, 1.0, 2.0])
def test_perfect_overlap_gains_at_most_what_theory_allows(draft_share):
    """(1 + d) / max(1, d) over synchronous decoding, d = drafting over verifying."""
    num_tokens = 16
    profile = with_step(draft_share * VERIFY_S / num_tokens)
    acceptance = drawn(0.9, 1, num_tokens=2000)
    sync = predict(speculative(num_tokens), profile, acceptance)
    overlapped = predict(mirror("draft", num_tokens=num_tokens), profile, acceptance)
    bound = (1 + draft_share) / max(1, draft_share)
    assert 0.93 * bound < sync.decode_s / overlapped.decode_s <= bound


@pytest.mark.parametrize("draft_share", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("exit_layer", [4, 7])
def test_an_early_exit_gains_less(draft_share, exit_layer):
    """(1 + d) / (f + max(1 - f, d)), f = share of the target's time before the exit."""
    num_tokens = 16
    profile = machine(
        lane("target", layer=1, lm_head=0, exit=0), lane("draft", draft_step=draft_share * 10 / num_tokens)
    )
    acceptance = drawn(0.9, 1, num_tokens=2000)
    sync = predict(speculative(num_tokens), profile, acceptance)
    overlapped = predict(mirror("exit", num_tokens=num_tokens, exit_layer=exit_layer), profile, acceptance)
    before_exit = exit_layer / 10
    bound = (1 + draft_share) / (before_exit + max(1 - before_exit, draft_share))
    assert 0.93 * bound < sync.decode_s / overlapped.decode_s <= bound * (1 + 1e-9)


def test_two_lanes_on_a_saturated_memory_gain_nothing():
    """A round moves the target's and the draft's bytes, over one bandwidth, in whatever order."""
    target, draft = lane("target"), lane("draft", draft_step=2.0)
    saturating = {
        "layer": target.layer.model_copy(update={"bytes_per_call": 1.0}),
        "lm_head": target.lm_head.model_copy(update={"bytes_per_call": 1.0}),
    }
    step = draft.draft_step.model_copy(update={"bytes_per_call": 2.0})
    profile = machine(
        target.model_copy(update=saturating), draft.model_copy(update={"draft_step": step}), memory_pool_bytes_per_s=1.0
    )
    acceptance = drawn(0.9, 1, num_tokens=400)
    found = predict(mirror("draft", num_tokens=3), profile, acceptance)
    assert found.decode_s == pytest.approx(3 * 2.0 + found.num_rounds * (VERIFY_S + 4 * 2.0), abs=1e-9)
