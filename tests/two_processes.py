"""Starting two processes as ``torchrun`` does, on this machine only."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time

NETWORK = re.compile(
    r"Rendezvous\w*Error|DistNetworkError|DistStoreError|EADDRINUSE|[Cc]onnection (refused|reset|closed)"
)
"""What a start can fail of that has nothing to do with the code: another program took the port, or the store was slow."""

TIMED_OUT = 124
"""Exit code of a start that took too long, which is tried again, too: where the port was taken, both wait for each other."""


def run_two(*program: str, timeout: float = 240, torchrun: bool = False, **environment: str) -> None:
    """Run ``program`` in two processes; fails the test with their last words if one of them fails.

    Args:
        program: words after ``python``.
        timeout: in seconds.
        torchrun: whether ``torchrun`` itself starts them: a third process, which imports torch as well and takes its time.
        environment: further variables.
    """
    without = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE")}
    variables = without | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    for last_try in (False, True):
        code, said = (_launch if torchrun else _start)(program, variables, timeout)
        if code == 0:
            return
        if last_try or not (code == TIMED_OUT or NETWORK.search(said)):
            raise AssertionError(said[-4000:])


def _launch(program: tuple[str, ...], variables: dict[str, str], timeout: float) -> tuple[int, str]:
    """Exit code and last words of a launch by ``torchrun``."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local_addr=127.0.0.1"]
    command = [*launcher, "--nproc_per_node=2", *program]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""
        return TIMED_OUT, f"{said.decode() if isinstance(said, bytes) else said}\nno end after {timeout} s"
    return done.returncode, done.stderr


def _start(program: tuple[str, ...], variables: dict[str, str], timeout: float) -> tuple[int, str]:
    """The same for two processes that find the variables which ``torchrun`` would set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    until, late = time.monotonic() + timeout, False
    with tempfile.TemporaryFile("w+") as said:
        ranks = [variables | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
        command = [sys.executable, *program]
        both = [subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=said) for own in ranks]
        try:
            # One that fails leaves the other waiting for it.
            while any(process.poll() is None for process in both) and not any(process.poll() for process in both):
                late = time.monotonic() > until
                if late:
                    break
                time.sleep(0.05)
        finally:
            for process in both:
                process.kill()
                process.wait()
        said.seek(0)
        if late:
            return TIMED_OUT, f"{said.read()}\nno end after {timeout} s"
        return max(abs(process.returncode) for process in both), said.read()
