"""What several algorithms use."""
