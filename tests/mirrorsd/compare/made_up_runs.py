"""Runs as a real world would leave them, from the simulated one: another speed, and the same decisions."""

from dataclasses import replace

from calibrate.profiling.anchors import RunAnchors, lanes_of
from mirrorsd.compare.runs import Measured, Run, expected_anchors
from sim.world import simulate


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


def really(trace, factor):
    return replace(trace, world="measured", decode_s=factor * trace.decode_s)
