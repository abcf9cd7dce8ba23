"""Which drafted tokens are accepted, and the distributions they come from."""
