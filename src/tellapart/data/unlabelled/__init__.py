"""Images without captions, as many as there are: folders, tars and videos, known by an index of a few bytes per image."""
