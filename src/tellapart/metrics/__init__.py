"""Measures of captions: they take strings, embeddings and numbers, never models, and import no torch."""
