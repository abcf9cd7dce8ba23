"""A published table of speed-ups next to what the simulated world makes of its machine, cell by cell."""
