"""The models that write captions, behind one interface."""
