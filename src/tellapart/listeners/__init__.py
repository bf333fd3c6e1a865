"""The models that retrieve an image from its caption."""
