"""Which drafted tokens are accepted, and the distributions behind that."""
