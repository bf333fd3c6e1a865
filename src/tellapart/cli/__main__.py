"""``python -m tellapart.cli``, for launchers that want a module (``torchrun -m tellapart.cli train ...``)."""

from tellapart.cli.main import program

program()
