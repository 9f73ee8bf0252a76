"""Building blocks that several algorithms share."""
