"""The event world: simulates one sequence or a batch event by event (SimPy)."""
