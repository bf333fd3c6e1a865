"""What a user would have, for every test of this folder."""

from materials import materials

__all__ = ["materials"]
