"""A published table of speed-ups compared with a simulation of its machine, entry by entry."""
