from types import SimpleNamespace

import pytest

from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.ranked_schedules import IDLE_SHARE, energy_j_per_token, usd_per_million_tokens

BUSY = SimpleNamespace(
    target_busy_s=6.0, hidden_draft_s=2.0, exposed_draft_s=1.0, decode_s=10.0, num_tokens=100, tpot_s=0.1
)
"""Ten seconds, six of the target's, three of the draft's, two of which the target hides."""
SPLIT = LanePair("gpu", "npu")


def number(value):
    return {"value": value, "status": "datasheet", "source": "made up", "as_of": "2026-01-01"}


def platform(gpu, npu, **fields):
    devices = {"gpu": {"name": "a GPU", "kind": "gpu"} | gpu, "npu": {"name": "an NPU", "kind": "npu"} | npu}
    pools = {"memory": {"devices": ["gpu", "npu"], "bytes_per_s": number(1e11)}}
    links = [{"between": ["gpu", "npu"], "latency_s": number(1e-5)}]
    return Platform.model_validate(
        {"name": "made up", "devices": devices, "memory_pools": pools, "links": links} | fields
    )


def test_devices_draw_their_power_while_they_compute_and_idle_power_else():
    gpu = {"power_w": number(50.0), "idle_power_w": number(5.0)}
    machine = platform(gpu, {"power_w": number(2.0), "idle_power_w": number(0.5)})
    assert energy_j_per_token(machine, SPLIT, BUSY) == pytest.approx((50 * 6 + 5 * 4 + 2 * 3 + 0.5 * 7) / 100)
    unknown = platform(gpu, {"power_w": number(2.0)})
    guessed = IDLE_SHARE.value * 2
    assert energy_j_per_token(unknown, SPLIT, BUSY) == pytest.approx((50 * 6 + 5 * 4 + 2 * 3 + guessed * 7) / 100)


PACKAGE = {"power_w": number(30.0), "idle_power_w": number(3.0), "power_of": "package"}


def test_a_package_draws_its_power_once_as_long_as_any_of_it_computes():
    joules = energy_j_per_token(platform(PACKAGE, PACKAGE), SPLIT, BUSY)
    assert joules == pytest.approx((30 * 7 + 3 * 3) / 100)


def test_a_device_without_a_power_of_its_own_draws_that_of_its_package_alone():
    package, chip = PACKAGE, {"memory_pool": "chip"}
    joules = energy_j_per_token(platform(package | chip, chip), SPLIT, BUSY)
    assert joules == pytest.approx((30 * 7 + 3 * 3) / 100)
    for other in ({}, {"memory_pool": "another"}):
        assert energy_j_per_token(platform(package | chip, other), SPLIT, BUSY) is None
    assert energy_j_per_token(platform({"power_w": number(30.0)} | chip, chip), SPLIT, BUSY) is None


def test_a_package_beside_a_card_idles_while_the_card_works():
    """Drafting in its three seconds, or computing its three quarters of a split target's six, and drafting nothing."""
    machine = platform({"power_w": number(50.0), "idle_power_w": number(5.0)}, PACKAGE)
    of_card = 50 * 6 + 5 * 4
    assert energy_j_per_token(machine, SPLIT, BUSY) == pytest.approx((of_card + 30 * 3 + 3 * 7) / 100)
    split, shares = LanePair.alone("gpu(1) + npu(3)"), {"gpu": 0.25, "npu": 0.75}
    of_card, of_package = 50 * (1.5 + 1) + 5 * 7.5, 30 * 4.5 + 3 * 5.5
    assert energy_j_per_token(machine, split, BUSY, shares) == pytest.approx((of_card + of_package) / 100)


def test_what_a_chip_costs_is_the_price_of_its_machine_whatever_of_it_computes():
    machine = load_platform("gb10-gpu")
    prices = [usd_per_million_tokens(machine, LanePair(*pair), BUSY) for pair in (("gpu", "cpu"), ("gpu", "gpu"))]
    assert prices[0] == prices[1] == pytest.approx(machine.device("gpu").usd_per_hour / 3600 * 1e5)


def test_two_streams_draw_the_power_of_one_device_while_any_of_them_computes():
    machine = platform({"power_w": number(50.0), "idle_power_w": number(5.0)}, {})
    assert energy_j_per_token(machine, LanePair("gpu", "gpu#2"), BUSY) == pytest.approx((50 * 7 + 5 * 3) / 100)
    assert energy_j_per_token(machine, LanePair("gpu", "gpu", in_turn=True), BUSY) == pytest.approx(
        (50 * 7 + 5 * 3) / 100
    )


def test_without_a_power_there_is_no_energy():
    assert energy_j_per_token(platform({"power_w": number(50.0)}, {}), SPLIT, BUSY) is None


def test_rent_by_the_hour_is_paid_for_the_time_of_a_million_tokens():
    machine = platform({"price_usd_per_hour": number(3.6)}, {"price_usd_per_hour": number(7.2)})
    assert usd_per_million_tokens(machine, SPLIT, BUSY) == pytest.approx(10.8 / 3600 * 1e5)
    assert usd_per_million_tokens(machine, LanePair("gpu", "gpu", in_turn=True), BUSY) == pytest.approx(
        3.6 / 3600 * 1e5
    )


def test_a_machine_that_is_bought_costs_its_share_of_the_write_off():
    machine = platform({}, {}, price_usd=number(3600.0), write_off_s=number(3.6e6))
    assert usd_per_million_tokens(machine, SPLIT, BUSY) == pytest.approx(0.001 * 1e5)


def test_without_a_price_of_everything_used_there_is_none():
    assert usd_per_million_tokens(platform({"price_usd_per_hour": number(1.0)}, {}), SPLIT, BUSY) is None
