"""The event world: SimPy lanes on one machine, for one sequence or a batch."""
