"""What engines hand over, as calls of draftwood."""
