"""The target: its operations, exits and streams."""
