"""The simulators: predict a schedule's speed from a profile (times) and an acceptance (which tokens are accepted).

::

    sim/events/      the event world: lanes and sequences, simulated event by event
    sim/arrays/      the array world: all rounds of a schedule at once
    sim/derived/     profiles of machines that nobody measured: data sheets and rooflines
    sim/acceptance/  which tokens are accepted: recorded texts replayed, or texts drawn from assumed rates
    sim/machine.py   the simulated hardware: devices, the memory that they share, links
    sim/world.py     simulates a schedule in the event world, for traces
    sim/evaluator.py predicts schedules in the array world, for searching
    sim/batch_prediction.py  predicts several sequences at once, in the event world
"""
