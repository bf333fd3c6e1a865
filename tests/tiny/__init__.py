"""Small captioners of every family, one module each, made by configuration."""
