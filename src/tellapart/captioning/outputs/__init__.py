"""The forms in which captions are written, one class each."""
