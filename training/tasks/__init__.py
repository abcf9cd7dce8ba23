"""Training tasks: one module per kind of drafter, and their base."""
