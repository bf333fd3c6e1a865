"""Numbers about captions: strings and arrays in, numbers out; no torch, no models."""
