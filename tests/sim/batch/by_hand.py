"""Batches played with plain loops: sequence by sequence, round by round, step by step, one number after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from costs.crossings import Messages
from costs.round_plan import DRAFT_START, DRAFT_STEP, DRAFT_STREAMS, LAYER, LM_HEAD, Part
from costs.ticks import TICK_S
from costs.ticks import one_in_ticks as ticks
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT, MISS
from sim.acceptance.replay import Replay
from tests.sim.worlds.machines import NUM_LAYERS

Rows = list[tuple[int, int]]
"""Rows and context of every sequence of a pass."""


def crossing_s(way, num_bytes) -> float:
    return sum(hop.latency_s + ticks(num_bytes / hop.bytes_per_s) for hop in way)


def work(seconds: float) -> float:
    """Whole ticks, one at least: random tables may say that a longer context costs less than nothing."""
    return max(ticks(seconds), TICK_S)


class ByHand:
    """Plays batches of one schedule. A sequence is a dictionary of where it is, and of the round it goes through."""

    def __init__(self, schedule: Schedule, profile: Profile, record: AcceptanceRecord, size: int) -> None:
        self.schedule, self.profile, self.replay = schedule, profile, Replay(record)
        self.messages = Messages.of(schedule, profile)
        self.guessing = self.replay.guessing(schedule)
        self.shape = self.replay.shape(schedule)
        self.accepted = self.replay.everywhere(schedule, None).num_accepted
        self.drafted = self.replay._drafted(schedule)
        self.texts: list[dict[str, Any]] = [
            {
                "prompt": number,
                "context": prompt.prompt_length - 1,
                "left": len(prompt.text),
                "at": int(start),
                "position": 0,
                "number": 0,
                "unread": 0,
                "window": int(self.drafted[start]),
                "verdict_bytes": 0.0,
            }
            for number, (prompt, start) in enumerate(zip(record.prompts, self.replay._joined.starts, strict=True))
        ]
        self.groups = [self.texts[first : first + size] for first in range(0, len(self.texts), size)]
        self.own_s, self.num_passes, self.num_rows = 0.0, 0, 0

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

    def commit(self, one) -> None:
        """A sequence's own round, whatever the others do."""
        schedule, traits = self.schedule, self.schedule.traits
        accepted = int(self.accepted[one["at"]]) if one["window"] else 0
        at = np.array([one["at"]])
        one["branch"] = MISS
        if traits.overlaps and accepted + 1 < one["left"]:
            if one["window"]:
                one["branch"] = int(self.replay._roots.branches(schedule, at, np.array([accepted]))[0])
            else:
                one["branch"] = int(self.replay.branches_of_no_window(schedule, at)[0])
        one["accepted"] = accepted
        step = min(accepted + 1, one["left"])
        one["ends"] = one["left"] == step
        is_hit = one["branch"] != MISS
        whole = accepted == schedule.num_speculative_tokens and schedule.method == "speculative"
        of_features = 0 if is_hit else accepted + traits.overlaps  # what a branch that is hit has read is read
        one["next"] = {
            "prompt": one["prompt"],
            "context": one["context"] + step,
            "left": one["left"] - step,
            "at": one["at"] + step,
            "position": one["position"] + step,
            "number": one["number"] + 1,
            "unread": of_features if schedule.reads_features else int(whole),
            "window": int(self.drafted[at + step][0]) if not one["ends"] and (is_hit or not traits.overlaps) else 0,
            "verdict_bytes": self.messages.verdict_bytes[accepted],
        }

    def part_s(self, lane_name: str, part: Part, rows_and_contexts: Rows) -> float:
        one = self.profile.lane(lane_name)
        table = {
            "layer": one.layer, "lm_head": one.lm_head, "draft_step": one.draft_step,
            "draft_step_features": one.draft_step_features, "exit": one.exit.get(part.exit_layer or 0),
            "draft_start": one.draft_start or one.draft_step_features, "draft_streams": one.draft_streams,
            "head_step": one.heads.get(part.drafter or ""), "streams": one.streams.get(part.drafter or ""),
        }[part.kind]  # fmt: skip
        given_ = [(rows, context) for rows, context in rows_and_contexts if rows]
        if not given_:
            return 0.0
        lowest = min(context for _, context in rows_and_contexts)
        base = table.at(sum(rows for rows, _ in given_), lowest)
        return base + sum(table.at(rows, context) - table.at(rows, lowest) for rows, context in given_)

    def target_s(self, calls, rows_and_contexts: Rows) -> float:
        lane_name = self.schedule.target_lane
        return work(sum(count * self.part_s(lane_name, part, rows_and_contexts) for part, count in calls.items()))

    def call_s(self, part: Part, rows_and_contexts: Rows) -> float:
        """A call of whatever drafts; nothing without rows."""
        is_any = any(rows for rows, _ in rows_and_contexts)
        return work(self.part_s(self.schedule.draft_lane, part, rows_and_contexts)) if is_any else 0.0

    @property
    def step(self) -> Part:
        schedule = self.schedule
        if not schedule.traits.has_draft_model:
            return Part("head_step", drafter=schedule.drafter)
        return Part("draft_step_features") if schedule.exit_features else DRAFT_STEP

    def step_s(self, rows_and_guesses: Rows, contexts: list[int]) -> float:
        """A step of every sequence: guesses of streams anywhere make it one of plain rows, and of the streams."""
        rows = [(count, context) for (count, _), context in zip(rows_and_guesses, contexts, strict=True)]
        guesses = [(count, context) for (_, count), context in zip(rows_and_guesses, contexts, strict=True)]
        has_guesses = any(count for count, _ in guesses)
        return self.call_s(DRAFT_STEP if has_guesses else self.step, rows) + self.call_s(DRAFT_STREAMS, guesses)

    def later_steps(self, prompt: int, position: int) -> Rows:
        """Rows of the steps of a window after its first one, and the guesses among them."""
        schedule = self.schedule
        if self.guessing is not None:
            return [(rows, rows - 1) for rows in self.guessing.rows(prompt, position)]
        if schedule.is_tree:
            return [(rows, 0) for rows in self.shape.level_rows]
        return [(1, 0)] * (schedule.num_speculative_tokens - 1 if schedule.traits.has_draft_model else 0)

    def drafting_s(self, steps: list[Rows], contexts: list[int]) -> float:
        """Every sequence goes through its own steps, the next ones of all at once, until the last one is done."""
        seconds = 0.0
        for number in range(max(map(len, steps))):
            rows = [own[number] if number < len(own) else (0, 0) for own in steps]
            seconds += self.step_s(rows, contexts)
        return seconds

    @property
    def overhead_s(self) -> float:
        schedule = self.schedule
        drafts = schedule.draft_lane is not None and not schedule.traits.finds_text
        return self.profile.round_overhead_s + (self.overhead_of(schedule.draft_lane, "draft_round") if drafts else 0.0)

    def rollout_s(self, going) -> float:
        """Windows of all sequences, what was committed before them and their way to the target's lane."""
        more = self.schedule.num_speculative_tokens - 1 if self.schedule.method == "block" else 0
        steps = [[(1 + one["unread"] + more, 0), *self.later_steps(one["prompt"], one["position"])] for one in going]
        seconds = self.drafting_s(steps, [one["context"] for one in going])
        seconds += self.overhead_of(self.schedule.draft_lane, self.of_drafter("rollout_start"))
        if any(one["number"] for one in going):
            seconds += crossing_s(self.messages.to_draft, sum(one["verdict_bytes"] for one in going))
        num_bytes = sum(self.messages.window_bytes[one["window"]] for one in going)
        return seconds + crossing_s(self.messages.to_target, num_bytes)

    def round_s(self, going) -> float:
        schedule, profile = self.schedule, self.profile
        target = profile.lane(schedule.target_lane)
        rows = [(one["window"] + 1, one["context"]) for one in going]
        if schedule.traits.overlaps:
            before_s = 0.0
            if going[0]["number"] == 0:
                before_s = 2 * ticks(profile.lane(schedule.draft_lane).dispatch_s / 2) + self.rollout_s(going)
            return before_s + self.mirror_round_s(going, rows)
        seconds = target.dispatch_s + self.overhead_s + self.pass_more_s()
        seconds += self.target_s({LAYER: NUM_LAYERS, LM_HEAD: 1}, rows)
        if schedule.traits.drafts_itself:
            seconds += self.target_s({Part("streams", drafter=schedule.drafter): 1}, rows)
        if schedule.draft_lane is not None:
            seconds += profile.lane(schedule.draft_lane).dispatch_s + self.rollout_s(going)
        return seconds

    def pass_more_s(self) -> float:
        """What the target takes more once a round for states that the drafter reads."""
        schedule = self.schedule
        return self.overhead_of(schedule.target_lane, self.of_drafter("features")) if schedule.reads_features else 0.0

    def of_drafter(self, event: str) -> str:
        return event if self.schedule.traits.has_draft_model else f"{event}:{self.schedule.drafter}"

    def overhead_of(self, lane: str, key: str) -> float:
        overheads = self.profile.lane(lane).overheads
        return overheads[key].seconds if key in overheads else 0.0

    def mirror_round_s(self, going, rows: Rows) -> float:
        schedule, profile, messages = self.schedule, self.profile, self.messages
        target, contexts = profile.lane(schedule.target_lane), [one["context"] for one in going]
        half_t = ticks(target.dispatch_s / 2)
        half_d = ticks(profile.lane(schedule.draft_lane).dispatch_s / 2)
        slow_t, slow_d = profile.slowdown(schedule.target_lane, schedule.draft_lane)
        exit_layer = schedule.exit_layer

        def segment_s(calls) -> float:
            return ticks(slow_t * self.target_s(calls, rows))

        told = sum(messages.verdict_bytes[one["accepted"]] for one in going if not one["ends"])
        arrival_s = None
        if exit_layer is None:
            verified = half_t + segment_s({LAYER: NUM_LAYERS, LM_HEAD: 1}) + ticks(self.pass_more_s())
            told_s = commit_s = verified + half_t + ticks(self.overhead_s)
            told_s += crossing_s(messages.to_draft, told)
        else:
            prefix = half_t + segment_s({LAYER: exit_layer, Part("exit", exit_layer): 1}) + ticks(self.pass_more_s())
            verified = prefix + segment_s({LAYER: NUM_LAYERS - exit_layer, LM_HEAD: 1})
            told_s = commit_s = verified + half_t + ticks(self.overhead_s)
            exit_s = prefix + half_t
            num_bytes = messages.exit_bytes / schedule.num_rows * sum(count for count, _ in rows)
            for hop in messages.to_draft:
                free_s = exit_s + ticks(num_bytes / hop.bytes_per_s)
                exit_s = free_s + hop.latency_s
                told_s = max(told_s, free_s) + ticks(told / hop.bytes_per_s) + hop.latency_s
            arrival_s = exit_s + half_d
        if all(one["ends"] for one in going):
            return commit_s
        reads = [one["unread"] if schedule.exit_features else 1 for one in going]
        read_s = self.step_s([(count, 0) for count in reads], contexts)
        now_s = half_d + ticks(slow_d * (read_s + self.branch_more_s if any(reads) else read_s))
        now_s, done = self.branches(going, slow_d, now_s, arrival_s, told_s + half_d)
        hits = [one for one in going if one["branch"] != MISS]
        steps: list[Rows] = []
        for one in going:
            reads = one["accepted"] if schedule.exit_features else 0  # only where no step has begun
            window = [(1 + reads, 0), *self.later_steps(one["prompt"], one["next"]["position"])] if one in hits else []
            steps.append(window[done.get(one["branch"], 0) :])
        now_s += self.drafting_s(steps, [one["next"]["context"] for one in going])
        return now_s + half_d + crossing_s(messages.to_target, messages.window_bytes[-1] * len(hits))

    def branches(self, going, slow_d: float, now_s: float, arrival_s, asked_s: float):
        """Steps of all roots until the verdicts come: when the draft notices them, and the steps done by source."""
        schedule = self.schedule
        source, done, most = schedule.root_source, {FROM_DRAFT: 0, FROM_EXIT: 0}, self.shape.branch_steps
        most = most or self.schedule.num_speculative_tokens
        while now_s < asked_s:
            has_joined = arrival_s is not None and arrival_s <= now_s
            takes = [
                one
                for one, has_begun in ((FROM_DRAFT, source != "exit"), (FROM_EXIT, has_joined))
                if has_begun and done[one] < most
            ]
            if not takes:
                now_s = asked_s if has_joined or arrival_s is None else arrival_s
                continue
            # of both sources those of the draft are the further ones: once they are done, the exit's go on alone
            is_first = done[takes[0]] == 0
            step_s = self.branch_step_s(going, takes, is_first=is_first)
            now_s += ticks(slow_d * (step_s + self.branch_more_s if step_s else 0.0))  # nobody may have a root
            for one in takes:
                done[one] += 1
        return now_s, done

    @property
    def branch_more_s(self) -> float:
        return self.overhead_of(self.schedule.draft_lane, "branch_step")

    def branch_step_s(self, going, takes, *, is_first: bool) -> float:
        schedule = self.schedule
        contexts = [one["context"] for one in going]
        roots = [sum(self.num_roots(one, source) for source in takes) for one in going]
        if is_first and schedule.exit_features:
            rows = [(one["window"] + count, one["context"]) for one, count in zip(going, roots, strict=True)]
            return self.call_s(DRAFT_START, rows)
        num_guesses = 0 if is_first else max(0, min(schedule.draft_streams, schedule.num_speculative_tokens - 2))
        rows = [(count * (1 + num_guesses), context) for count, context in zip(roots, contexts, strict=True)]
        guesses = [(count * num_guesses, context) for count, context in zip(roots, contexts, strict=True)]
        return self.call_s(DRAFT_STEP, rows) + self.call_s(DRAFT_STREAMS, guesses)

    def num_roots(self, one, source: int) -> int:
        schedule = self.schedule
        if source == FROM_EXIT and schedule.root_source == "hybrid":
            return self.replay.num_exit_roots(schedule, one["window"])
        budget = schedule.draft_roots_per_row if source == FROM_DRAFT else schedule.exit_roots_per_row
        return sum(budget) if one["window"] else budget[-1]
