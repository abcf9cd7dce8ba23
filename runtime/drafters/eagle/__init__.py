"""EAGLE heads: one layer that drafts a dynamic tree from the states of the target."""
