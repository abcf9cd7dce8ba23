"""Groups of devices: the way that they exchange over, and the memories that they share."""

import pytest

from costs.cost_model import Part
from hwprofiles.platform import Platform
from sim.derived.derived_profile import derived_profile, device_group, lane_cost
from tests.sim.derived.test_derived_profile import demand, number, platform


def test_a_group_exchanges_over_the_slowest_way_of_its_ring():
    """A third GPU is joined to the second one by a slower link."""
    data = platform().model_dump(exclude_none=True)
    data["devices"]["gpu2"] = data["devices"]["gpu1"]
    data["links"] = [
        *data["links"],
        {"between": ["gpu1", "gpu2"], "latency_s": number(4e-5), "bytes_per_s": number(5e9)},
    ]
    ring = Platform.model_validate(data | {"groups": {"gpus": ["gpu0", "gpu1", "gpu2"]}})
    group = device_group(ring, demand(["gpus"]), "gpus")
    assert group.num_devices == 3
    # From the last one back to the first it goes over both links.
    assert group.latency_s == pytest.approx(5e-5)
    assert 1 / group.bytes_per_s == pytest.approx(1 / 1e10 + 1 / 5e9)


def test_members_of_a_group_on_one_memory_draw_from_it_together():
    data = platform().model_dump(exclude_none=True)
    data["memory_pools"]["memory"]["devices"] = ["gpu0", "npu", "gpu1"]
    data["devices"]["gpu1"] = data["devices"]["gpu0"]
    crowded = Platform.model_validate(data)
    alone = derived_profile(crowded, demand(["gpu0", "npu", "gpu1", "gpus"])).profile
    assert alone.slowdown("gpus", "npu")[0] > alone.slowdown("gpu0", "npu")[0]


def test_a_group_on_one_memory_reads_no_faster_than_it_and_never_slower_with_more():
    """Members take turns in being the slowest, each in another part of the model."""
    data = platform().model_dump(exclude_none=True) | {"groups": {"mixed": ["gpu0", "npu"]}}
    before = None
    for gigabytes_per_s in range(40, 320, 20):
        data["memory_pools"]["memory"]["bytes_per_s"] = number(gigabytes_per_s * 1e9)
        cost = lane_cost(Platform.model_validate(data), demand(["mixed"]), "mixed")
        assert 2 * cost.device.bytes_per_s <= gigabytes_per_s * 1e9
        times_s = [cost.one(Part(kind), 1, 512) for kind in ("layer", "lm_head", "draft_step")]
        assert before is None or all(now <= then for now, then in zip(times_s, before, strict=True))
        before = times_s


def test_a_group_reads_caches_as_its_slowest_member_does():
    """The member whose pass takes longest after 512 tokens may be the faster one at reading a long cache."""
    data = platform().model_dump(exclude_none=True)
    data["devices"]["gpu1"] |= {"memory_efficiency": number(0.6), "cache_efficiency": number(1.0)}
    data["devices"]["gpu0"] |= {"cache_efficiency": number(0.3)}
    device = lane_cost(Platform.model_validate(data), demand(["gpus"]), "gpus").device
    assert device.bytes_per_s == pytest.approx(0.6 * 2e11)
    assert device.bytes_per_s * device.cache_efficiency == pytest.approx(0.3 * 0.8 * 2e11)
