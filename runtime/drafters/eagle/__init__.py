"""EAGLE heads: one decoder layer that drafts a dynamic tree from the target's hidden states."""
