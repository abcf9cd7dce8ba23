"""What is trained: one module per kind of drafter, and what they share."""
