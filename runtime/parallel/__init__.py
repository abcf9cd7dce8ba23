"""A model on several ranks: a target split by heads and rows, drafts of parallel tracks, and the group they form."""
