"""Recipes: one description of a training, read, checked and built."""
