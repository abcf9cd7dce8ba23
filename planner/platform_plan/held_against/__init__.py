"""What a plan is held against: the same played event by event, and runs."""
