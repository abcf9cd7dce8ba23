"""Acceptance: which tokens the target accepts, from recorded texts or from texts drawn by assumed rates."""
