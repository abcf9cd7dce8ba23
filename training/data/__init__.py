"""Conversations, the states of the target over them, and batches."""
