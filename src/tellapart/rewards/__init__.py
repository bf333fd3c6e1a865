"""Callables that score a rollout."""
