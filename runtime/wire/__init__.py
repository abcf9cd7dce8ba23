"""What travels between driver and lane, and how."""
