"""Captioning a collection: what is captioned, in which batches, judged how, written where, and going on after a stop."""
