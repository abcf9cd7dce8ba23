"""Models on several ranks: the group of their processes, and a target split by heads and rows."""
