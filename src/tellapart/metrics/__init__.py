"""Caption metrics on strings, arrays and numbers: no torch, no models."""

from tellapart.metrics.ptb import ptb_tokenize

__all__ = ["ptb_tokenize"]
