"""Random machines for tests of the simulator."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from hwprofiles.lane_profile import DeviceGroup, Overhead
from hwprofiles.profile import Contention, LaneProfile, LatencyTable, LinkProfile, Profile
from tests.sim.worlds.machines import EXIT_LAYERS, lane, machine


@st.composite
def profiles(draw: st.DrawFn, *, contended: bool | None = None, paced: bool = True) -> Profile:
    """Random tables over rows and contexts. Whole seconds make both lanes reach boundaries at the same time."""
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    whole_seconds = draw(st.booleans())
    draft_share = draw(st.sampled_from([0.2, 1.0, 5.0]))

    def seconds(scale: float) -> float:
        value = random.uniform(0.1, 2.0) * scale
        return float(np.ceil(value)) if whole_seconds else value

    def table(scale: float) -> LatencyTable:
        contexts = (0, 16, 50) if random.random() < 0.5 else (0,)
        return LatencyTable(
            rows=(1, 3, 8, 60, 160),
            contexts=contexts,
            seconds=tuple(tuple(seconds(scale) for _ in contexts) for _ in range(5)),
            relative_error=random.uniform(0, 0.1),
            bytes_per_call=random.uniform(0, 4),
            source="random",
        )

    knows_prefill = draw(st.booleans())

    def random_lane(name: str) -> LaneProfile:
        of_prompts: dict[str, Any] = {}
        if knows_prefill:
            of_prompts = {"prefill": table(1.0), "draft_prefill": table(draft_share)}
            of_prompts["head_prefill"] = {name: table(draft_share) for name in ("head", "other")}
        of_events = dict.fromkeys(("first_step", "first_step:head", "draft_round"), draft_share)
        of_events |= dict.fromkeys(("exit", "features", "features:head", "features:other"), 0.5)
        return LaneProfile(
            **of_prompts,
            relative_error=random.uniform(0, 0.1),
            name=name,
            device="cpu",
            dispatch_s=random.choice([0.0, seconds(1.0)]),
            overheads={
                key: Overhead(seconds=random.choice([0.0, seconds(share)]), relative_error=random.uniform(0, 0.1))
                for key, share in of_events.items()
            },
            pace_spread=random.choice([0.0, random.uniform(0, 0.3)]) if paced else 0.0,
            layer=table(1.0),
            lm_head=table(1.0),
            exit={layer: table(1.0) for layer in EXIT_LAYERS},
            draft_step=table(draft_share),
            draft_step_features=table(draft_share),
            draft_streams=table(draft_share),
            heads={name: table(draft_share) for name in ("head", "other", "lookup")},
            streams={"streams": table(draft_share)},
        )

    def random_link(*lanes: str) -> LinkProfile:
        return LinkProfile(
            lanes=lanes,
            latency_s=random.choice([0.0, seconds(1.0), seconds(30.0)]),
            bytes_per_s=random.choice([1e9, 16.0, random.uniform(1.0, 100.0)]),
            source="random",
        )

    def random_group() -> DeviceGroup:
        return DeviceGroup(
            num_devices=int(random.integers(1, 9)),
            latency_s=random.choice([0.0, seconds(0.1)]),
            bytes_per_s=random.uniform(1.0, 100.0),
            reduced_bytes_per_row=random.choice([0.0, 4.0]),
            gathered_bytes_per_row=random.choice([0.0, 1.0]),
            all_reduces={"layer": 2, "draft_step": 2, "heads": 1, "prefill": 20},
            all_gathers={"lm_head": 1, "exit": 1, "draft_step": 1},
            algorithm=random.choice(["ring", "tree", None]),
            source="random",
        )

    contended = draw(st.booleans()) if contended is None else contended
    pooled_memory = contended and draw(st.booleans())
    slowdown = tuple(float(random.choice([1.0, 2.0, random.uniform(0.9, 3.0)])) for _ in range(2))
    links = {
        "none": (),
        "one": (random_link("draft", "target"),),
        "each way": (random_link("target", "draft"), random_link("draft", "target")),
        "over a host": (random_link("target", "host"), random_link("host", "draft"), random_link("draft", "host")),
    }
    return machine(
        random_lane("target").model_copy(update={"group": draw(st.sampled_from([None, random_group()]))}),
        random_lane("draft").model_copy(update={"group": draw(st.sampled_from([None, None, random_group()]))}),
        lane("host"),
        links=links[draw(st.sampled_from(sorted(links)))],
        contention=(Contention(lanes=("target", "draft"), slowdown=slowdown, relative_error=0.04, source="random"),)
        if contended
        else (),
        memory_pool_bytes_per_s=random.uniform(1.0, 20.0) if pooled_memory else None,
        features_bytes_per_row=random.choice([0.0, 4.0]),
        round_overhead_s=random.choice([0.0, seconds(1.0)]),
        relative_error=0.05,
        pace_error=random.choice([0.0, 0.1]),
    )
