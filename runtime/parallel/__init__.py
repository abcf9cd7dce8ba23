"""A target on several ranks of this host, split by heads and rows, and the group they form."""
