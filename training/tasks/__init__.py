"""Training tasks: one module for each kind of drafter, and their base class."""
