"""Training data: conversations, the target's hidden states on them, and batches with their losses."""
