"""Runs as a real world would leave them, from the simulated one: another speed, and the same decisions."""

from dataclasses import replace

from calibrate.profiling.anchors import RunAnchors, lanes_of
from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.runs import Measured, Run, expected_anchors
from planner.search.search import rank
from planner.search.space import SearchSpace
from sim.world import simulate

SPACE = SearchSpace(windows=(2, 3), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())
PLAIN = Schedule(method="autoregressive", target_lane="both")
DRAFTING = Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3)
PACES = [1.0, 1.5, 0.8, 1.2]


def made_up_runs(schedules, profile, record, *, paces=None, slower=1.0):
    """Every schedule on the first prompts: the machine at one pace per prompt, the work `slower` than predicted."""
    paces = paces or [1.0] * len(record.prompts)
    expected = expected_anchors(profile)
    return Measured(
        runs=tuple(
            tuple(
                Run(
                    trace=really(trace, pace * slower),
                    tokens=tuple(prompt.text.tolist()),
                    at_s=float(place),
                    anchors=RunAnchors({lane: (pace * expected[lane],) * 3 for lane in lanes_of(schedule)}),
                )
                for place, (trace, prompt, pace) in enumerate(
                    zip(simulate(schedule, profile, record), record.prompts, paces, strict=False)
                )
            )
            for schedule in schedules
        )
    )


def judged(plan, slower, num_prompts=4):
    """Runs in which each schedule took so many times what was predicted, judged."""
    ranked = {one.schedule: one for one in rank(list(slower), plan.profile, plan.record).candidates}
    runs = tuple(
        made_up_runs([schedule], plan.profile, plan.record, paces=PACES, slower=factor).runs[0][:num_prompts]
        for schedule, factor in slower.items()
    )
    return judge_runs([ranked[schedule] for schedule in slower], Measured(runs=runs), plan.profile, plan.record)


def really(trace, factor):
    return replace(trace, world="measured", decode_s=factor * trace.decode_s)
