"""What this machine can do for tellapart, and what each missing part costs. Importing this module loads no torch."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.files import cache_dir

Line = tuple[str, str]
"""What is told about, and what there is to tell."""


@dataclass(frozen=True)
class Part:
    """An optional part of the installation.

    Args:
        modules: what it installs, all of which must be there.
        cost: what a user does without it.
        extra: name of the extra that installs it; null where it is a package by itself.
    """

    modules: tuple[str, ...]
    cost: str
    extra: str | None = None

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.modules if find_spec(name) is None]

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"pip install 'tellapart[{self.extra}]'" if self.extra else f"pip install {' '.join(self.modules)}"


PARTS = {
    "datasets": Part(("datasets",), "data of the hub (owner/name) cannot be read", "datasets"),
    "meteor": Part(("nltk", "pycocoevalcap"), "METEOR is left out of scores, rewards and evaluations", "meteor"),
    "hdf5": Part(("h5py",), "image features in HDF5 files cannot be read", "hdf5"),
    "faiss": Part(
        ("faiss",),
        "above 200,000 images neighbours are mined exactly: on one core 10 minutes instead of 3 at 200,000, and 4 hours "
        "instead of 1 at 1,000,000",
        "faiss",
    ),
    "judge": Part(("starlette", "uvicorn"), "tellapart judge cannot show its page", "judge"),
    "plot": Part(("matplotlib",), "tellapart frontier draws no PNG and SVG, only its page", "plot"),
    "quantization": Part(
        ("bitsandbytes",),
        "frozen parts of large captioners cannot be held in 8 or 4 bits, so they need more memory",
        "quantization",
    ),
    "video": Part(("av",), "videos cannot be trained on by their key frames", "video"),
    "tensorboard": Part(
        ("tensorboard",), "report_to=tensorboard is refused; metrics.jsonl is written as ever", "tensorboard"
    ),
    "pillow-heif": Part(("pillow_heif",), "HEIC photos, as of iPhones, count as damaged"),
}
"""Optional part -> what it is for; every extra of the installation but that for developers is one."""

_GIB = 2**30


def machine_lines() -> Iterator[Line]:
    """Python, packages and devices; this is where torch is loaded."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    import torch

    yield "torch", f"{torch.__version__}, transformers {_version('transformers')}, tellapart {_version('tellapart')}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = f"{cores} cores, {torch.get_num_threads()} threads of torch"
    yield "CPU", told + ("; set OMP_NUM_THREADS=1 where other programs compute" if torch.get_num_threads() > 1 else "")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(cards):
        card = torch.cuda.get_device_properties(number)
        bf16 = "bf16 in hardware" if card.major >= 8 else "no bf16 in hardware: leave bf16 off"
        yield f"GPU {number}", f"{card.name}, {card.total_memory / _GIB:.0f} GiB, {bf16}"
    if torch.backends.mps.is_available():
        yield "GPU", "Apple's (mps)"
    elif not cards:
        yield "GPU", "none: the built-in world is made for a CPU; training photo captioners on one is slow"


def java_line() -> Line:
    """Which Java there is, and whether SPICE can run; nothing is started or fetched."""
    from tellapart.metrics.spice import SpiceProgram, java_version

    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if os.environ.get("JAVA_HOME") else None)
    number = java_version(Path(java)) if java else None
    have = f"{java}, version {number or 'unknown'}" if java else "none; only SPICE needs one"
    try:
        SpiceProgram.find()
    except UsageError as error:
        return "Java", f"{have}. {error}"
    return "Java", f"{have}: SPICE can run"


def part_lines() -> Iterator[Line]:
    """Every optional part: there, or what is done without."""
    for name, part in PARTS.items():
        yield name, f"missing: {part.cost} ({part.remedy})" if part.missing else "installed"


def cache_lines() -> Iterator[Line]:
    """The cache folder by kind, and which stages of the built-in world are built."""
    folder = cache_dir()
    kinds = {path.name: _size(path) for path in sorted(folder.iterdir()) if path.is_dir()} if folder.is_dir() else {}
    parts = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in kinds.items())
    yield "cache", f"{folder}: {sum(kinds.values()) / _GIB:.2f} GiB" + (f" ({parts})" if parts else ", empty")
    from tellapart.world import spec
    from tellapart.world.schedules import STAGES
    from tellapart.world.stages import stage_folder

    for size in spec.SPLIT_SIZES:
        built = [name.removeprefix("world/") for name in STAGES if stage_folder(name, size, 0).is_dir()]
        lacking = [name.removeprefix("world/") for name in STAGES if name.removeprefix("world/") not in built]
        told = f"built: {', '.join(built) or 'nothing'}"
        yield f"world, {size}", told + (f"; built on first use: {', '.join(lacking)}" if lacking else "")


def _size(folder: Path) -> int:
    """Bytes of the files below a folder; what vanishes meanwhile does not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
