"""The SimPy world: plays a schedule with known latencies and acceptance.

::

    sim/events/      its lanes, and the sequence or batch they decode: event by event
    sim/arrays/      the same for all rounds of a schedule at once
    sim/derived/     what machines that nobody measured cost: by data sheets and rooflines
    sim/acceptance/  what the models say: records replayed, rates drawn
    sim/machine.py   the machine of a schedule: devices, the memory they share, links
    sim/world.py     plays schedules by events, for traces
    sim/evaluator.py predicts schedules by arrays, for searching
    sim/batch_prediction.py  predicts several sequences at once, by events
"""
