"""Recipes are read once for all tests of studies."""

from sweep.study_fakes import loaded_once

__all__ = ["loaded_once"]
