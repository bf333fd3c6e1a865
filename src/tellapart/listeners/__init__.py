"""Dual encoders: images and texts in one space."""
