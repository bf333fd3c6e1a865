"""Measuring, comparing and showing trained captioners."""
