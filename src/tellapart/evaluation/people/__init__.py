"""Metrics against people: correlation with ratings, and accuracy on preferences."""
