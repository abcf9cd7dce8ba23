"""Pictures of plans as SVG of our own: small, sharp on paper, and right in light and dark pages."""
