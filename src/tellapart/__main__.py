"""``python -m tellapart``, the command as a module (``torchrun -m tellapart train ...``)."""

from tellapart.cli.main import program

program()
