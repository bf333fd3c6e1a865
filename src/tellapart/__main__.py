"""``python -m tellapart``, the command as a module (``torchrun -m tellapart train ...``)."""

import sys

from tellapart.cli.main import main

sys.exit(main())
