"""The HTML page of a demo or a validation: the plan and what was measured."""
