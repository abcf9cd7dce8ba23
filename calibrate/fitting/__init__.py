"""From what was timed between anchors to the numbers of a profile, and how far each of them may be off."""
