"""Starting two processes as ``torchrun`` does, on this machine only."""

import os
import re
import subprocess
import sys

NETWORK = re.compile(
    r"Rendezvous\w*Error|DistNetworkError|DistStoreError|EADDRINUSE|[Cc]onnection (refused|reset|closed)"
)
"""What a start can fail of that has nothing to do with the code: another program took the port, or the store was slow."""


def run_two(*program: str, timeout: float = 240, **environment: str) -> None:
    """Run ``program`` in two processes; fails the test with their last words if they fail."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local_addr=127.0.0.1"]
    without = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE")}
    variables = without | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    for last_try in (False, True):
        done = subprocess.run(
            [*launcher, "--nproc_per_node=2", *program], env=variables, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode == 0:
            return
        if last_try or not NETWORK.search(done.stderr):
            raise AssertionError(done.stderr[-4000:])
