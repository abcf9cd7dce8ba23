"""The array world: simulates all rounds of a schedule at once with array operations."""
