"""Images with captions: readers, the loader, and the built-in world."""
