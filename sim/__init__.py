"""The SimPy world: plays a schedule with known latencies and acceptance.

::

    sim/machine/     devices, memory pools, links, collectives, a host: parts, each of use alone
    sim/events/      the machine room of a schedule, its lanes, and the sequence they decode: event by event
    sim/arrays/      the same for all rounds of a schedule at once
    costs/        how long: cost models, the durations of operations, messages, what lanes cost each other
    sim/derived/     tables of machines that nobody measured: by data sheets
    sim/acceptance/  what the models say: records replayed, rates drawn
    sim/world.py     plays schedules by events, for traces
    sim/evaluator.py predicts schedules by arrays, for searching
"""
