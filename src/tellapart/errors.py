"""The one exception that means "the input is wrong, and here is the remedy"."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user gave cannot be used.

    The message is one sentence that names the file or option, the value found and the remedy. The command line prints it
    without a traceback (unless ``--debug``) and exits with code 2.
    """
