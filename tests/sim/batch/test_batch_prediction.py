"""Batches in the simulated world: as a play of every sequence by hand has it, and what they are for."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decoding.errors import ConfigError, OutOfRangeError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Contention, LatencyTable, Profile
from sim.acceptance.acceptance_model import MISS, DrawnAcceptance
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.acceptance.replay import Replay
from sim.batch.batch_prediction import best_by_batch, not_in_batches, predict_batch, switch_off_at
from sim.cost.crossings import Messages
from sim.cost.round_plan import LAYER, LM_HEAD, Part
from sim.evaluator import predict
from sim.ticks import TICK_S
from sim.ticks import one_in_ticks as ticks
from tests.sim.test_block_drafters import block
from tests.sim.worlds import (
    AUTOREGRESSIVE,
    NUM_LAYERS,
    lane,
    machine,
    mirror,
    profiles,
    records,
    schedules,
    speculative,
)

TOLERANCE_S = 1e-8
PARTS = ("layer", "lm_head", "draft_step", "draft_step_features")


def sums(way, num_bytes) -> float:
    return sum(hop.latency_s + num_bytes / hop.bytes_per_s for hop in way)


def work(seconds: float) -> float:
    """Whole ticks, one at least: random tables may say that a longer context costs less than nothing."""
    return max(ticks(seconds), TICK_S)


class ByHand:
    """Plays batches with plain loops: sequence by sequence, round by round, one number after the other."""

    def __init__(self, schedule: Schedule, profile: Profile, record: AcceptanceRecord, size: int) -> None:
        self.schedule, self.profile, self.replay = schedule, profile, Replay(record)
        self.messages = Messages.of(schedule, profile)
        self.texts = [
            {
                "context": prompt.prompt_length - 1,
                "left": len(prompt.text),
                "at": int(start),
                "number": 0,
                "unread": 0,
                "window": schedule.num_speculative_tokens,
                "verdict_bytes": 0.0,
            }
            for prompt, start in zip(record.prompts, self.replay._joined.starts, strict=True)
        ]
        self.accepted = self.replay.everywhere(schedule, None).num_accepted
        self.groups = [self.texts[first : first + size] for first in range(0, len(self.texts), size)]
        self.own_s, self.num_passes, self.num_rows = 0.0, 0, 0

    def part_s(self, lane_name: str, part: Part, rows_and_contexts) -> float:
        one = self.profile.lane(lane_name)
        table = {
            "layer": one.layer, "lm_head": one.lm_head, "draft_step": one.draft_step,
            "draft_step_features": one.draft_step_features, "exit": one.exit.get(part.exit_layer or 0),
            "head_step": one.heads.get(part.drafter or ""),
        }[part.kind]  # fmt: skip
        given_ = [(rows, context) for rows, context in rows_and_contexts if rows]
        if not given_:
            return 0.0
        lowest = min(context for _, context in rows_and_contexts)
        base = table.at(sum(rows for rows, _ in given_), lowest)
        return base + sum(table.at(rows, context) - table.at(rows, lowest) for rows, context in given_)

    def target_s(self, calls, rows_and_contexts) -> float:
        lane_name = self.schedule.target_lane
        return work(sum(count * self.part_s(lane_name, part, rows_and_contexts) for part, count in calls.items()))

    def step_s(self, lane_name: str, part: Part, rows_and_contexts) -> float:
        is_any = any(rows for rows, _ in rows_and_contexts)
        return work(self.part_s(lane_name, part, rows_and_contexts)) if is_any else 0.0

    def rollout_s(self, going) -> float:
        schedule, lane_name = self.schedule, self.schedule.draft_lane
        if schedule.method == "block":
            part = Part("head_step", drafter=schedule.drafter)
        else:
            part = Part("draft_step_features" if schedule.exit_features else "draft_step")
        more = schedule.num_speculative_tokens - 1
        first = [(1 + one["unread"] + (more if schedule.method == "block" else 0), one["context"]) for one in going]
        head = schedule.drafter if schedule.method == "block" else None
        seconds = self.step_s(lane_name, part, first) + self.profile.lane(lane_name).rollout_wake_s(head)
        if schedule.method != "block":
            seconds += more * self.step_s(lane_name, part, [(1, one["context"]) for one in going])
        if any(one["number"] for one in going):
            seconds += sums(self.messages.to_draft, sum(one["verdict_bytes"] for one in going))
        return seconds + sums(self.messages.to_target, sum(self.messages.window_bytes[one["window"]] for one in going))

    def commit(self, one) -> None:
        """A sequence's own round, whatever the others do."""
        schedule = self.schedule
        accepted = int(self.accepted[one["at"]]) if one["window"] else 0
        at = np.array([one["at"]])
        if schedule.traits.overlaps and accepted + 1 < one["left"]:
            if one["window"]:
                branch = self.replay._roots.branches(schedule, at, np.array([accepted]))[0]
            else:
                branch = self.replay.branches_of_no_window(schedule, at)[0]
            one["hit"] = branch != MISS
        else:
            one["hit"] = False
        one["accepted"] = accepted
        step = min(accepted + 1, one["left"])
        one["ends"] = one["left"] == step
        reads_all = schedule.reads_features
        whole = accepted == schedule.num_speculative_tokens and schedule.method == "speculative"
        one["next"] = {
            "context": one["context"] + step,
            "left": one["left"] - step,
            "at": one["at"] + step,
            "number": one["number"] + 1,
            "unread": accepted if reads_all else int(whole),
            "window": schedule.num_speculative_tokens if one["hit"] or not schedule.traits.overlaps else 0,
            "verdict_bytes": self.messages.verdict_bytes[accepted],
        }

    def round_s(self, going) -> float:
        schedule, profile = self.schedule, self.profile
        target = profile.lane(schedule.target_lane)
        rows = [(one["window"] + 1, one["context"]) for one in going]
        if not schedule.traits.overlaps:
            seconds = target.dispatch_s + profile.round_overhead_s
            seconds += target.wake_s if schedule.draft_lane not in (None, schedule.target_lane) else 0.0
            seconds += self.target_s({LAYER: NUM_LAYERS, LM_HEAD: 1}, rows)
            if schedule.draft_lane is not None:
                seconds += profile.lane(schedule.draft_lane).dispatch_s + self.rollout_s(going)
            return seconds
        return self.mirror_round_s(going, rows)

    def mirror_round_s(self, going, rows) -> float:
        schedule, profile, messages = self.schedule, self.profile, self.messages
        target = profile.lane(schedule.target_lane)
        half_t = ticks(target.dispatch_s / 2)
        half_d = ticks(profile.lane(schedule.draft_lane).dispatch_s / 2)
        slow_t, slow_d = profile.slowdown(schedule.target_lane, schedule.draft_lane)
        exit_layer, step = schedule.exit_layer, Part("draft_step")
        before = 0.0
        if going[0]["number"] == 0:
            before = 2 * half_d + self.rollout_s(going)
        ready = half_d + ticks(slow_d * ticks(self.step_s(schedule.draft_lane, step, [(1, one) for _, one in rows])))

        def segment_s(calls) -> float:
            return ticks(slow_t * self.target_s(calls, rows))

        told = sum(messages.verdict_bytes[one["accepted"]] for one in going if not one["ends"])
        if exit_layer is None:
            verified = half_t + segment_s({LAYER: NUM_LAYERS, LM_HEAD: 1}) + ticks(target.wake_s)
            told_s = commit = verified + half_t + ticks(profile.round_overhead_s)
            told_s += sums(messages.to_draft, told)
        else:
            prefix = half_t + segment_s({LAYER: exit_layer, Part("exit", exit_layer): 1}) + ticks(target.wake_s)
            verified = prefix + segment_s({LAYER: NUM_LAYERS - exit_layer, LM_HEAD: 1})
            told_s = commit = verified + half_t + ticks(profile.round_overhead_s)
            exit_s = prefix + half_t
            num_bytes = messages.exit_bytes / schedule.num_rows * sum(count for count, _ in rows)
            for hop in messages.to_draft:
                free_s = exit_s + num_bytes / hop.bytes_per_s
                exit_s = free_s + hop.latency_s
                told_s = max(told_s, free_s) + told / hop.bytes_per_s + hop.latency_s
            ready = max(ready, ticks(exit_s) + half_d)
        if all(one["ends"] for one in going):
            return before + commit
        asked = ticks(told_s) + half_d
        budget = schedule.draft_roots_per_row if exit_layer is None else schedule.exit_roots_per_row
        roots = [(sum(budget) if one["window"] else budget[-1], one["context"]) for one in going]
        step_s = ticks(slow_d * self.step_s(schedule.draft_lane, step, roots))
        begun = min(max(ceil((asked - ready) / step_s), 0), schedule.num_speculative_tokens)
        noticed = max(asked, ready + begun * step_s)
        finish_s = self.step_s(schedule.draft_lane, step, [(int(one["hit"]), one["next"]["context"]) for one in going])
        answer = noticed + (schedule.num_speculative_tokens - begun) * finish_s + half_d
        return before + answer + sums(messages.to_target, messages.window_bytes[-1] * sum(one["hit"] for one in going))

    def decode_s(self) -> float:
        total_s = 0.0
        for group in self.groups:
            going, batch_s = list(group), 0.0
            while going:
                for one in going:
                    self.commit(one)
                self.num_passes += 1
                self.num_rows += sum(one["window"] + 1 for one in going)
                batch_s += self.round_s(going)
                self.own_s += batch_s * sum(one["ends"] for one in going)
                going = [one["next"] for one in going if not one["ends"]]
            total_s += batch_s
        return total_s


def tall(profile: Profile) -> Profile:
    """The same tables with room for the rows of any batch here, on lanes of one device."""

    def grown(table: LatencyTable | None) -> LatencyTable | None:
        if table is None:
            return None
        return table.model_copy(update={"rows": (*table.rows[:-1], 5000)})

    lanes = tuple(
        one.model_copy(
            update={name: grown(getattr(one, name)) for name in PARTS}
            | {"group": None}
            | {"exit": {layer: grown(table) for layer, table in one.exit.items()}}
            | {"heads": {name: grown(table) for name, table in one.heads.items()}}
        )
        for one in profile.lanes
    )
    return profile.model_copy(update={"lanes": lanes, "memory_pool_bytes_per_s": None})


@st.composite
def batched_schedules(draw: st.DrawFn) -> Schedule:
    num_tokens = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["plain", "speculative", "features", "exit", "draft", "exit", "draft"]))
    if kind == "plain":
        return AUTOREGRESSIVE
    if kind in ("speculative", "features"):
        draft_lane = draw(st.sampled_from(["draft", "target"]))
        return speculative(num_tokens, draft_lane=draft_lane, exit_features=kind == "features")
    return mirror(kind, num_tokens=num_tokens, **{f"{kind}_top_k": draw(st.integers(1, 4))})


@given(batched_schedules(), profiles(), st.lists(records(), min_size=1, max_size=2), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_a_batch_is_what_playing_every_sequence_by_hand_comes_to(
    schedule: Schedule, profile: Profile, several: list[AcceptanceRecord], size: int
) -> None:
    profile = tall(profile)
    prompts = tuple(prompt for record in several for prompt in record.prompts)
    record = replace(several[0], prompts=prompts, max_new_tokens=30)
    found, by_hand = predict_batch(schedule, profile, record, batch_size=size), ByHand(schedule, profile, record, size)
    assert found.decode_s == pytest.approx(by_hand.decode_s(), abs=TOLERANCE_S)
    assert found.tpot_s * found.num_tokens == pytest.approx(by_hand.own_s, abs=TOLERANCE_S)
    assert (found.num_passes, found.mean_rows) == (by_hand.num_passes, by_hand.num_rows / by_hand.num_passes)


@given(profiles(), st.integers(1, 4), st.floats(0, 1), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_so_it_is_with_drafters_of_blocks(profile: Profile, num_tokens: int, rate: float, size: int) -> None:
    record = Bernoulli(rate, texts=Texts(num_texts=3, num_tokens=20, prompt_length=2), blocks=("head",)).record
    schedule = block(num_tokens)
    found = predict_batch(schedule, tall(profile), record, batch_size=size)
    assert found.decode_s == pytest.approx(ByHand(schedule, tall(profile), record, size).decode_s(), abs=TOLERANCE_S)


@given(schedules(), profiles(contended=False), records())
@settings(max_examples=80, deadline=None)
def test_a_batch_of_one_is_a_sequence(schedule: Schedule, profile: Profile, record: AcceptanceRecord) -> None:
    """All but mirror, where a sequence alone would rather wait for its window than go on without one."""
    assume(not_in_batches(schedule) is None and not schedule.traits.overlaps)
    one, batch = predict(schedule, profile, record), predict_batch(schedule, profile, record, batch_size=1)
    assert batch.decode_s == pytest.approx(one.decode_s, abs=TOLERANCE_S)
    assert batch.tpot_s == pytest.approx(one.tpot_s, rel=1e-9)
    assert batch.mean_acceptance_length == one.mean_acceptance_length


@pytest.mark.parametrize("source", ["exit", "draft"])
@given(profiles(contended=False), st.floats(0, 1), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_so_it_is_with_branches_that_are_always_hit(source: str, profile: Profile, rate: float, width: int) -> None:
    sure = {"alternative_rates": (1.0, 1.0), "exit_coverage": {4: (1.0, 1.0)}}
    record = Bernoulli(rate, texts=Texts(num_texts=2, num_tokens=20, prompt_length=2), **sure)
    schedule = mirror(source, num_tokens=width, **{f"{source}_top_k": 2})
    found = predict_batch(schedule, profile, record, batch_size=1)
    assert found.decode_s == pytest.approx(predict(schedule, profile, record).decode_s, abs=TOLERANCE_S)


def test_equal_sequences_cost_no_more_than_one_where_rows_are_free() -> None:
    alone, together = (
        predict_batch(speculative(3), machine(), Bernoulli(1.0, texts=Texts(num_texts=8)), batch_size=size)
        for size in (1, 8)
    )
    assert together.tokens_per_s == pytest.approx(8 * alone.tokens_per_s)
    assert together.tpot_s == pytest.approx(alone.tpot_s)
    assert (alone.mean_rows, together.mean_rows) == (4, 32)


def test_a_sequence_without_a_branch_verifies_a_single_row() -> None:
    """Nothing is covered: after the first window no round has one, and all rounds but the first commit one token."""
    missing = Bernoulli(1.0, texts=Texts(num_texts=2, num_tokens=12), exit_coverage={4: (0.0,)})
    found = predict_batch(mirror("exit", num_tokens=3), machine(), missing, batch_size=2)
    assert found.num_passes == 1 + (12 - 4)
    assert found.mean_rows == (2 * 4 + 8 * 2) / 9


def rows_cost(per_row_s: float) -> Profile:
    """Passes that take 1 s and so much more for every row after the first eight: what a device gives away for free."""
    table = LatencyTable(
        rows=(1, 8, 2000), contexts=(0,), seconds=((0.1,), (0.1,), (0.1 + 1992 * per_row_s,)), source="by hand"
    )
    target = lane("target").model_copy(update={"layer": table, "lm_head": table})
    return machine(target, lane("draft", draft_step=0.01))


def test_larger_batches_want_shorter_windows_and_at_last_none() -> None:
    acceptance = Bernoulli(0.6, texts=Texts(num_texts=64, num_tokens=40))
    schedules_ = [AUTOREGRESSIVE, *(speculative(width) for width in (1, 2, 4, 7))]
    best = best_by_batch(schedules_, rows_cost(0.05), acceptance)
    windows = [best[size].schedule.num_speculative_tokens for size in (1, 2, 4, 8, 16, 32, 64)]
    assert windows == sorted(windows, reverse=True)
    assert windows[0] == 7
    assert windows[-1] == 0
    off = switch_off_at(best)
    assert off is not None
    assert [best[size].schedule.method == "autoregressive" for size in best] == [size >= off for size in best]
    assert switch_off_at(best_by_batch(schedules_, machine(), acceptance, batch_sizes=(1, 2, 8))) is None


def test_every_sequence_reads_its_own_cache() -> None:
    """A second of weights, and a hundredth for every cached token of each sequence: of the lowest context once more."""
    growing = LatencyTable(rows=(1, 2000), contexts=(0, 1000), seconds=((1.0, 11.0),) * 2, source="by hand")
    target = lane("target", lm_head=0.0).model_copy(update={"layer": growing})
    texts = Texts(num_texts=2, num_tokens=1, prompt_length=101)
    [short, long] = Bernoulli(0.0, texts=texts).record.prompts
    record = Bernoulli(0.0, texts=texts).record
    ragged = replace(record, prompts=(short, replace(long, prompt_length=301)))
    found = predict_batch(AUTOREGRESSIVE, machine(target), ragged, batch_size=2)
    assert found.decode_s == pytest.approx(NUM_LAYERS * (1 + 1.0 + 2.0))


def wanting(bytes_per_s: float, **fields: Any) -> Profile:
    """Two lanes of which each takes so much of a memory while it computes, however many rows there are."""

    def moved(table: LatencyTable) -> LatencyTable:
        return table.model_copy(update={"bytes_per_call": bytes_per_s * table.seconds[0][0]})

    plain = tall(machine(lane("target"), lane("draft", draft_step=7.0)))  # slow: a round ends within its steps
    lanes = tuple(
        one.model_copy(
            update={name: moved(getattr(one, name)) for name in ("layer", "lm_head", "draft_step")}
            | {"exit": {layer: moved(table) for layer, table in one.exit.items()}}
        )
        for one in plain.lanes
    )
    return plain.model_copy(update={"lanes": lanes} | fields)


@pytest.mark.parametrize("source", ["exit", "draft"])
@pytest.mark.parametrize("size", [1, 3])
def test_half_of_a_memory_each_makes_both_lanes_twice_as_slow(source: str, size: int) -> None:
    sure = {"alternative_rates": (0.2, 0.5), "exit_coverage": {4: (0.5, 0.7)}}
    record = Bernoulli(0.7, texts=Texts(num_texts=6, num_tokens=20, prompt_length=2), **sure).record
    schedule = mirror(source, num_tokens=3, **{f"{source}_top_k": 2})
    halved = wanting(100, memory_pool_bytes_per_s=100)
    measured = Contention(lanes=("target", "draft"), slowdown=(2, 2), source="by hand")
    ample, alone, slowed = wanting(100, memory_pool_bytes_per_s=200), wanting(100), wanting(0, contention=(measured,))

    def decode_s(profile: Profile) -> float:
        return predict_batch(schedule, profile, record, batch_size=size).decode_s

    assert decode_s(halved) == decode_s(slowed) > decode_s(alone)
    assert decode_s(ample) == decode_s(alone)


REFUSED = {
    "a draft with streams": speculative(4, draft_streams=1),
    "without features": mirror("exit", exit_features=True),
    "root sources exit and draft": mirror("hybrid"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_played_in_batches_is_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predict_batch(REFUSED[message], machine(), Bernoulli(0.5), batch_size=2)


@pytest.mark.parametrize("size", [0, 65])
def test_batches_are_of_1_to_64(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"batch_size is {size}: it is 1\.\.64"):
        predict_batch(AUTOREGRESSIVE, machine(), Bernoulli(0.5), batch_size=size)


def test_rows_that_were_not_measured_are_refused() -> None:
    with pytest.raises(OutOfRangeError, match="rows"):
        predict_batch(speculative(7), machine(), Bernoulli(0.5, texts=Texts(num_texts=64)), batch_size=64)


def test_batches_need_texts() -> None:
    with pytest.raises(ConfigError, match="batches are played along texts"):
        predict_batch(AUTOREGRESSIVE, machine(), DrawnAcceptance(0.5, hit_rate=0, num_tokens=5), batch_size=2)


def test_the_source_says_that_nobody_runs_batches_yet() -> None:
    found = predict_batch(AUTOREGRESSIVE, machine(), Bernoulli(0.5), batch_size=2)
    assert found.source.startswith("assumed acceptance 0.5 at every place")
    assert found.source.endswith("batches are simulated only")
