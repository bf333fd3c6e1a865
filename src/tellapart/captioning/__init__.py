"""Captioning a collection: planning, batches, checks, outputs, and resuming after interruption."""
