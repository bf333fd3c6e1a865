"""Starting two processes as ``torchrun`` does, on this machine only."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress

NETWORK = re.compile(
    r"Rendezvous\w*Error|DistNetworkError|DistStoreError|EADDRINUSE|[Cc]onnection (refused|reset|closed)"
)
"""What a start can fail of that has nothing to do with the code: another program took the port, or the store was slow."""

TIMED_OUT = 124
"""Exit code of a start that took too long, which is tried again, too: where the port was taken, both wait for each other."""


FORKS = """
import os, runpy, signal, sys
import accelerate, tellapart.captioners.huggingface, tellapart.training.loop, torch.distributed
from transformers import CLIPModel, GPT2LMHeadModel, VisionEncoderDecoderModel

children = []
for rank in "01":
    child = os.fork()
    if not child:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # as tellapart's program ends: the interpreter's teardown aborts where threads of gloo are left
    children.append(child)
code = 0
while children and not code:
    child, status = os.wait()
    children.remove(child)
    code = abs(os.waitstatus_to_exitcode(status))
for child in children:  # one that fails leaves the other waiting for it
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
sys.exit(code)
"""
"""Runs a script in two processes, which share the imports that take most of their time."""


def run_two(*program: str, timeout: float = 240, torchrun: bool = False, **environment: str) -> None:
    """Run ``program`` in two processes; fails the test with their last words if one of them fails.

    Args:
        program: a script and its words, or with ``torchrun`` the words after ``python``.
        timeout: in seconds.
        torchrun: whether ``torchrun`` itself starts them: a third process, which imports torch as well and takes its time.
        environment: further variables; ``PYTHONPATH`` goes in front of the one that is set.
    """
    without = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE")}
    variables = without | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")])
    )
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
    command = [sys.executable, "-c", FORKS, *program]
    with tempfile.TemporaryFile("w+") as said:
        both = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            code, last = both.wait(timeout), ""
        except subprocess.TimeoutExpired:
            code, last = TIMED_OUT, f"\nno end after {timeout} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(both.pid, signal.SIGKILL)
            both.wait()
        said.seek(0)
        return code, said.read() + last
