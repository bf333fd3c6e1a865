"""Image features that were computed before: read by id, in place of pictures."""
