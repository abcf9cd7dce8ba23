"""The driver's side of lanes: their processes, and the lane calls of a sequence."""
