"""A target whose layers are on devices that take turns: its pass is the sum of the parts and of the handovers."""

from dataclasses import dataclass

import numpy as np
import pytest

from costs.cost_model import Floats, Own, Part, PartFacts, Shared
from costs.prices import pass_s
from costs.round_plan import LAYER, LM_HEAD
from costs.split_cost import Handover, SplitCost, SplitPart
from decoding.errors import ProfileError
from hwprofiles.model_shape import model_shape
from tests.costs.constant_cost import ConstantCost

DENSE, MIXTURE = model_shape("qwen3-8b"), model_shape("qwen3-30b-a3b")
CONTEXTS = np.array([0.0, 100.0])


@dataclass(frozen=True)
class Reader:
    """A layer takes a second for every so many bytes of its weights, and for every thousand cached tokens."""

    bytes_per_s: float
    shape: object = DENSE
    error: float = 0.1

    def _bytes(self, rows: float) -> float:
        return self.shape.layer_weight_bytes("q8_0", rows)

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        return self.shared(part, rows).with_one(self.own(part, rows, contexts))

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        return f"no {part} of {rows}" if rows > 9 else None

    def shared(self, part: Part, rows: float) -> Shared:
        seconds = self._bytes(rows) / self.bytes_per_s
        return Shared(self._bytes(rows), seconds, 0.0)

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        return Own(0 * contexts, contexts / 1e3, 0 * contexts)

    def facts(self, part: Part) -> PartFacts:
        return PartFacts(self.error, f"reader of {self.bytes_per_s:g}", 512)


def split(
    fast: object,
    slow: object,
    shape: object = DENSE,
    *,
    on_fast: float = 0.0,
    apart: float = 0.0,
    err_as: tuple[str, str] = ("slow", "fast"),
    has_host: bool = True,
) -> SplitCost:
    num_layers = shape.num_layers
    parts = (
        SplitPart("cpu", slow, num_layers - on_fast, num_layers - on_fast + apart, err_as[0]),
        SplitPart("gpu", fast, on_fast, on_fast - apart, err_as[1]),
    )
    way = Handover(2, 0.25, 8.0)
    return SplitCost(parts=parts, handovers=(way,), state_bytes=4.0, shape=shape, weights="q8_0", has_host=has_host)


def test_a_pass_is_the_sum_of_its_parts_and_of_the_ways_between_them():
    constant = [ConstantCost({"layer": seconds, "lm_head": 1.0}) for seconds in (0.5, 3.0)]
    cost = split(*constant, on_fast=30)
    assert pass_s(cost, DENSE.num_layers, 3, 0.0) == pytest.approx(30 * 0.5 + 6 * 3.0 + 1.0 + 2 * (0.25 + 3 * 4 / 8))


def test_caches_are_read_where_their_layers_are():
    cost = split(Reader(1e9), Reader(1e8), on_fast=30)
    one = DENSE.layer_weight_bytes("q8_0")
    layers_s = 30 * (one / 1e9 + CONTEXTS / 1e3) + 6 * (one / 1e8 + CONTEXTS / 1e3)
    seconds = cost.seconds(LAYER, 1, CONTEXTS)
    assert DENSE.num_layers * seconds == pytest.approx(layers_s + 2 * (0.25 + 4 / 8))
    assert cost.shared(LAYER, 1).with_one(cost.own(LAYER, 1, CONTEXTS)) == pytest.approx(seconds)


@pytest.mark.parametrize("rows", [1, 4])
def test_experts_elsewhere_take_their_bytes_there(rows):
    """Bytes over bandwidths alone: of a mixture whose experts are all on the CPU, and of one with some there."""
    readers = Reader(1e9, MIXTURE), Reader(1e8, MIXTURE)
    whole, experts = (MIXTURE.layer_weight_bytes("q8_0", rows), MIXTURE.expert_bytes("q8_0", rows))
    for apart in (48, 20):
        cost = split(*readers, MIXTURE, on_fast=48, apart=apart)
        expected_s = apart * experts / 1e8 + (48 * whole - apart * experts) / 1e9 + 2 * (0.25 + rows * 4 / 8)
        assert 48 * cost.seconds(LAYER, rows, np.zeros(1)) == pytest.approx(expected_s)


class Untold(Reader):
    """Tells no bytes, as tables of before they were written down."""

    def shared(self, part: Part, rows: float) -> Shared:
        return super().shared(part, rows)._replace(num_bytes=0.0)


def test_experts_elsewhere_take_as_long_where_tables_tell_no_bytes():
    told, untold = (
        split(kind(1e9, MIXTURE), kind(1e8, MIXTURE), MIXTURE, on_fast=48, apart=20) for kind in (Reader, Untold)
    )
    assert untold.seconds(LAYER, 2, CONTEXTS) == pytest.approx(told.seconds(LAYER, 2, CONTEXTS))
    assert untold.shared(LAYER, 2).num_bytes == 0


def test_its_parts_err_on_their_own_by_their_shares_of_the_time():
    cost = split(Reader(1e9, error=0.1), Reader(1e8, error=0.3), on_fast=30)
    assert cost.shares == pytest.approx({"gpu": 30 / 90, "cpu": 60 / 90})
    facts = cost.facts(LAYER)
    assert facts.relative_error**2 == pytest.approx((1 / 3 * 0.1) ** 2 + (2 / 3 * 0.3) ** 2)
    assert facts.most_positions == 512
    assert facts.source == "reader of 1e+08; reader of 1e+09"


def test_parts_of_equal_devices_err_together():
    equal = [Reader(1e9, error=0.2), Reader(1e9, error=0.2)]
    assert split(*equal, on_fast=18, err_as=("card", "card")).facts(LAYER).relative_error == pytest.approx(0.2)
    assert split(*equal, on_fast=18).facts(LAYER).relative_error == pytest.approx(0.2 / 2**0.5)


def test_all_but_layers_is_on_the_last_card_and_some_parts_are_not_known():
    cost = split(fast := Reader(1e9), Reader(1e8), on_fast=30)
    for part in (LM_HEAD, Part("draft_step"), Part("heads", drafter="eagle3")):
        assert cost.shared(part, 2) == fast.shared(part, 2)
        assert cost.facts(part) == fast.facts(part)
    assert cost.missing(LAYER, 10, CONTEXTS) == cost.missing(LM_HEAD, 10, CONTEXTS).replace("lm_head", "layer")
    assert "nothing is known" in cost.missing(Part("exit", 12), 1, CONTEXTS)
    with pytest.raises(ProfileError, match="split over devices"):
        cost.seconds(Part("exit", 12), 1, CONTEXTS)


PROMPT = Part("prefill")


@pytest.mark.parametrize(
    ("rows", "has_host", "num_copies"), [(600, True, 2), (512, True, 1), (32, True, 1), (31, True, 0), (600, False, 0)]
)
def test_many_rows_are_multiplied_on_the_card_to_which_weights_of_the_cpu_are_copied(rows, has_host, num_copies):
    """512 rows at a time; fewer than 32 are computed where the weights are, and so are all between two cards.

    This reader reads a prompt as fast as a layer.
    """
    cost = split(Reader(1e9), Reader(1e8), on_fast=30, has_host=has_host)
    layer_bytes = DENSE.layer_weight_bytes("q8_0")
    layers_s = 30 * layer_bytes / 1e9 + 6 * layer_bytes / (1e9 if num_copies else 1e8)
    ways_s = 2 * (0.25 + rows * 4 / 8) + num_copies * 6 * layer_bytes / 8
    for part, calls in ((PROMPT, 1), (LAYER, 36)):
        seconds = calls * cost.seconds(part, rows, CONTEXTS)
        assert seconds[0] == pytest.approx(calls * layers_s / 36 + ways_s)
        assert seconds[1] - seconds[0] == pytest.approx(calls * 100 / 1e3), "caches are read where their layers are"
        assert calls * cost.shared(part, rows).with_one(cost.own(part, rows, CONTEXTS)) == pytest.approx(seconds)
    assert cost.facts(PROMPT) == cost.facts(LAYER)


def test_experts_elsewhere_are_copied_for_a_prompt():
    cost = split(Reader(1e9, MIXTURE), Reader(1e8, MIXTURE), MIXTURE, on_fast=48, apart=20)
    whole, experts = MIXTURE.layer_weight_bytes("q8_0", 512), MIXTURE.expert_bytes("q8_0", 512)
    expected_s = whole / 1e9 + 2 * (0.25 + 512 * 4 / 8) + 20 * experts / 8
    assert cost.seconds(PROMPT, 512, np.zeros(1)) == pytest.approx(expected_s)
