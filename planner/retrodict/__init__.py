"""Public measurements of speculation, predicted from what ships, and how far off that is."""
