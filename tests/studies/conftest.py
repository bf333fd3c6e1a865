"""Recipes are read once for all tests of studies, and their keys computed once."""

from sweep.study_fakes import keyed_once, loaded_once

__all__ = ["keyed_once", "loaded_once"]
