"""How long: cost models, the durations of operations, and what lanes cost each other."""
