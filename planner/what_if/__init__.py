"""What another draft, target or text would change."""
