"""How weights are stored, by the names that people type."""
