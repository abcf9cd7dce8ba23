"""The array world: all rounds of a schedule at once."""
