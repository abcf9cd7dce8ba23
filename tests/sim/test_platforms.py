"""Both simulated worlds play every platform alike: those that ship, any of their numbers moved, on any two lanes."""

from functools import cache
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decoding import metrics
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from hwprofiles.model_shape import model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from hwprofiles.sheets import shipped_names
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.derived.derived_profile import Demand, derived_profile, speed_on
from sim.derived.roofline import StoredModel
from sim.evaluator import Evaluator
from sim.world import simulate

TOLERANCE_S = 1e-9
TEXTS = Texts(num_texts=2, num_tokens=24, prompt_length=40)
EXIT_LAYER = 16
TARGET, DRAFT = (StoredModel(shape=model_shape(name), weights="int4") for name in ("smollm2-360m", "smollm2-135m"))
ENDS: Final = {"latency_s": (1e-7, 1e-2), "bytes_per_s": (1e7, 1e13), "dispatch_s": (1e-7, 5e-3)}
"""Between these a number may be moved."""


@cache
def lanes_of(name: str) -> tuple[str, ...]:
    """Devices and groups of a shipped platform whose speed can be told."""
    platform = load_platform(name)
    return tuple(lane for lane in (*platform.devices, *platform.groups) if is_known(platform, lane))


def is_known(platform: Platform, lane: str) -> bool:
    try:
        return all(speed_on(platform, member) for member in platform.members(lane))
    except ProfileError:
        return False


@st.composite
def moved(draw: st.DrawFn, platform: Platform) -> Platform:
    """A platform with some of its links, memories and devices faster or slower by up to a hundred times."""
    parts: dict[str, Any] = {"-".join(link.between): link for link in platform.links}
    parts |= {**platform.memory_pools, **platform.devices}
    numbers = {
        f"{part}.{field}": number.value
        for part, found in parts.items()
        for field in ENDS
        if (number := getattr(found, field, None)) is not None
    }
    scales = draw(st.dictionaries(st.sampled_from(sorted(numbers)), st.floats(0.01, 100.0), max_size=6))
    changes = {}
    for key, scale in scales.items():
        low, high = ENDS[key.rpartition(".")[2]]
        changes[key] = min(max(numbers[key] * scale, low), high)
    return with_overrides(platform, changes)


@st.composite
def asked(draw: st.DrawFn, target: str, draft: str) -> Schedule:
    """Any schedule of a draft model on two lanes, or in turn on one."""
    fields: dict[str, Any] = {"num_speculative_tokens": draw(st.integers(1, 6)), "method": "speculative"}
    fields["draft_streams"] = draw(st.integers(0, max(0, min(2, fields["num_speculative_tokens"] - 2))))
    if target != draft and draw(st.booleans()):
        source = draw(st.sampled_from(["draft", "exit", "hybrid"]))
        fields |= {"method": "mirror", "root_source": source}
        if source != "exit":
            fields["draft_top_k"] = draw(st.integers(1, 4))
        if source != "draft":
            fields |= {"exit_layer": EXIT_LAYER, "exit_top_k": draw(st.integers(1, 4))}
    return Schedule(target_lane=target, draft_lane=draft, drafter=DRAFT.shape.name, **fields)


@pytest.mark.parametrize("name", shipped_names("platform"))
@settings(max_examples=16, deadline=None)
@given(st.data(), st.floats(0, 1), st.floats(0, 1))
def test_arrays_say_of_every_text_on_any_platform_what_events_say(name, data, rate, hits):
    platform = data.draw(moved(load_platform(name)))
    target, draft = data.draw(st.tuples(*[st.sampled_from(lanes_of(name))] * 2))
    assume(target == draft or not set(platform.members(target)) & set(platform.members(draft)))
    schedule = data.draw(asked(target, draft))
    acceptance = Bernoulli(
        rate,
        texts=TEXTS,
        alternative_rates=(hits / 4,) * 4,
        exit_coverage={EXIT_LAYER: (hits,) * 4},
        stream_rates=(0.8, 0.8),
    )
    demand = Demand(target=TARGET, draft=DRAFT, lanes=list(dict.fromkeys((target, draft))), exits=(EXIT_LAYER,))
    known = derived_profile(platform, demand)
    evaluator = Evaluator(known.profile, acceptance, costs=known.costs)
    assume(evaluator.missing(schedule) is None)
    told = evaluator.predict(schedule)
    played = simulate(schedule, known.profile, acceptance, trace=False, costs=known.costs)
    assert [trace.decode_s for trace in played] == pytest.approx(told.prompt_decode_s, abs=TOLERANCE_S)
    assert told.num_rounds == metrics.num_rounds(played)
    assert told.e2e_s == pytest.approx(metrics.e2e_s(played), abs=TOLERANCE_S)
