"""What would turn a plan: its question asked again with other numbers."""
