"""What would change a plan's answer: the plan repeated with other numbers."""
