"""``python -m tellapart.cli``, for launchers that want a module (``torchrun -m tellapart.cli train ...``)."""

import sys

from tellapart.cli.main import main

sys.exit(main())
