"""Weight formats by the names that people type."""
