"""The page that shows a plan and what was measured."""
