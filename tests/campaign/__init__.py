"""An attack on the package: kills, full disks, strange files. ``python -m tests.campaign --minutes 30 --seed 1`` runs it."""

import os
import sys
from pathlib import Path

# The helpers of the tests, which pytest finds by its own setting.
if (_TESTS := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.insert(0, _TESTS)

for _name, _value in (
    ("OMP_NUM_THREADS", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
    ("TRANSFORMERS_VERBOSITY", "error"),
):
    os.environ.setdefault(_name, _value)
