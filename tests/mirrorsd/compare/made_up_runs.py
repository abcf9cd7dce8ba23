"""Runs as a real world would leave them, from the simulated one: another speed, and the same decisions."""

from dataclasses import replace

from mirrorsd.compare.pace import expected_steps
from mirrorsd.compare.runs import Measured, Run, SpeedSample
from mirrorsd.compare.speed_probe import lanes_of
from sim.world import simulate


def made_up_runs(schedules, profile, record, *, paces=None, slower=1.0):
    """Every schedule on the first prompts: the machine at one pace per prompt, the work `slower` than predicted."""
    paces = paces or [1.0] * len(record.prompts)
    expected = expected_steps(profile, record)
    return Measured(
        runs=tuple(
            tuple(
                Run(
                    trace=really(trace, pace * slower),
                    tokens=tuple(prompt.text.tolist()),
                    at_s=float(place),
                    around=tuple(around(schedule, expected, pace)),
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


def around(schedule, expected, pace):
    """An anchor and a plain step of every lane, before and after."""
    for at_s in (0.0, 1.0):
        for lane in lanes_of(schedule):
            yield SpeedSample("anchor", lane, at_s, pace * expected["anchor", lane])
        lane = schedule.target_lane
        yield SpeedSample("plain", lane, at_s, pace * expected["plain", lane])
