"""``tellapart doctor``: the capabilities of this machine; with a run, the faults that its log shows; with captions, theirs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tellapart.cli.command import options_of, refuse_unused
from tellapart.cli.console import say
from tellapart.errors import UsageError
from tellapart.files import cache_dir

if TYPE_CHECKING:
    from tellapart.evaluation.alarms import Alarm, Curve


WRONG = 1
"""Exit code of ``--strict`` where something is wrong."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of ``tellapart doctor``.

    Args:
        strict: exit with 1 if a warning holds at the end of a run's log; warnings that are over by then, and changes that the
            training may intend, do not count.
        references: for files of captions: human captions of the same images, in any layout, which the captions are compared with;
            null compares with figures of COCO captions.
        split: which part of the references.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart doctor",
        "tellapart doctor runs/x",
        "tellapart doctor runs/* --strict",
    )
    strict: bool = False
    references: str | None = None
    split: str | None = None


def run(argv: Sequence[str]) -> int:
    """Print the machine, or the warnings of runs."""
    chosen = options_of(
        argv,
        DoctorOptions,
        usage="doctor | doctor RUN ... | doctor LOG ... | doctor CAPTIONS ...",
        description="Report what this machine can do and what missing parts cost; or what goes wrong in the logs of runs, "
        "including runs that are still training, of TRL and of verl (JSON lines, trainer_state.json, tensorboard); or what is "
        "wrong with captions in a file (any that tellapart score reads).",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        refuse_unused(options, (), "without a run")
        _tell_machine()
        return 0
    wrong = [_tell(word, options) for word in words]
    return WRONG if options.strict and any(wrong) else 0


def _tell(word: str, options: DoctorOptions) -> bool:
    """Print what a run of ours, another trainer's log, or a file of captions shows; whether something is wrong."""
    from tellapart.evaluation.other_logs import is_our_run, read_other_log

    path = Path(word)
    curves = None if is_our_run(path) else read_other_log(path)
    if curves is None and path.is_file():
        return _tell_captions(word, options)
    refuse_unused(options, ("strict",), f"to {path}, which is not a file of captions: leave it out")
    return _tell_run(path) if curves is None else _tell_other_log(path, curves)


def _tell_other_log(path: Path, curves: dict[str, Curve]) -> bool:
    """Print what the log of another trainer shows; whether something is wrong at its end."""
    from tellapart.evaluation.alarms import find_alarms
    from tellapart.evaluation.other_logs import EVAL_LENGTH

    if not curves:
        say(f"{path}: no figure of this log can be read: name the log of a training that has begun to write")
        return True
    known = {key for key in curves if key != EVAL_LENGTH}
    steps = [curve[-1][0] for curve in curves.values() if curve]
    say(f"{path}: another trainer's log, {len(known)} metrics up to step {max(steps, default=0)}")
    alarms = find_alarms(curves)
    for alarm in alarms:
        say(f"  {_when(alarm):<26} {alarm.rule}: {alarm.text}")
    if not alarms:
        say("  nothing is wrong in what it logs")
    say(
        "  not measured here: the words of captions and a judge; run tellapart doctor CAPTIONS and tellapart score on them"
    )
    return any(alarm.lasting and not alarm.change for alarm in alarms)


def _tell_machine() -> None:
    _say_lines("this machine", machine_lines())
    _say_lines("\nexternal tools", [java_line()])
    _say_lines("\noptional parts", part_lines())
    _say_lines("\ncache", cache_lines())
    say("\nA browser is needed only for reports; it can be on another machine.")


def _say_lines(heading: str, lines: Iterable[tuple[str, str]]) -> None:
    say(f"{heading}:")
    for name, told in lines:
        say(f"  {name:<14} {told}")


def _tell_run(folder: Path) -> bool:
    """Print what the log of a run shows; whether something is wrong at its end."""
    from tellapart.evaluation.alarms import find_alarms, held_against_nothing
    from tellapart.evaluation.report.record import read_record
    from tellapart.evaluation.report.runs import read_curves
    from tellapart.run_files import LOG_FILE

    log = folder / LOG_FILE
    if not folder.exists():
        raise UsageError(f"{folder} does not exist: correct the path.")
    if not log.is_file():
        raise UsageError(f"{folder} has no {LOG_FILE}: name the output_dir of a training.")
    curves, record = read_curves(log), read_record(folder)
    floor = record.floor if record else None
    alarms = find_alarms(curves, floor=floor)
    facts = record.facts if record else {}
    say(f"{folder}: {_progress(curves, facts)}")
    for alarm in alarms:
        say(f"  {_when(alarm):<26} {alarm.rule}: {alarm.text}")
    if not alarms:
        say("  nothing is wrong" if curves else "  no line of the log can be read so far")
    if record and record.ended:
        say(f"  {record.ended}")
    if waiting := held_against_nothing(curves, floor=floor):
        say(
            "  no reference value yet (no evaluation so far has at most 50 % repetition and at most 50 % of the images with "
            f"one caption): {', '.join(waiting)}."
        )
    missing = _not_measured(curves)
    if missing:
        say(f"  not measured: {'; '.join(missing)}")
    return any(alarm.lasting and not alarm.change for alarm in alarms)


# Captions in a file.


def _tell_captions(word: str, options: DoctorOptions) -> bool:
    """Print the figures of captions and the rules they break; whether one is broken that is never intended."""
    from tellapart.evaluation.caption_doctor import LEAST, check_captions
    from tellapart.evaluation.given import Given, as_references, as_results

    results = as_results(word)
    if options.references is None:
        refuse_unused(options, ("strict",), "without --references: give them, or leave it out")
        captions, references = [row.caption for row in results.rows], None
    else:
        given = Given.of(results, as_references(options.references, split=options.split))
        matched, every = given.matched.captions, given.references.references
        captions, references = list(matched.values()), [every[image_id] for image_id in matched]
    checked = check_captions(captions, references)
    say(f"{word}: {len(captions):,} captions, compared with {'their references' if checked.human else 'COCO captions'}")
    say(f"  {', '.join(f'{key} {value:.4g}' for key, value in checked.figures.items() if key != 'captions')}")
    for verdict in checked.verdicts:
        say(f"  {'a change: ' if verdict.rule.change else ''}{verdict.text}")
    if not checked.verdicts:
        say("  nothing is wrong with the words")
    if len(captions) < LEAST:
        say(f"  note: {len(captions)} captions are few; shares of fewer than {LEAST} say little")
    return checked.wrong


def _progress(curves: Mapping[str, Curve], facts: dict[str, Any]) -> str:
    from tellapart.verdicts.rules import EVAL_PREFIX

    step = max((curve[-1][0] for curve in curves.values() if curve), default=0)
    evaluated = {at for key, curve in curves.items() if key.startswith(EVAL_PREFIX) for at, _ in curve}
    total = f" of {facts['total_steps']}" if facts.get("total_steps") else ""
    return f"step {step}{total}, {len(evaluated)} evaluations"


def _when(alarm: Alarm) -> str:
    over = "" if alarm.lasting else ", over by the end"
    return f"from step {alarm.step}{', a change' if alarm.change else over}"


def _not_measured(curves: Mapping[str, Curve]) -> list[str]:
    """The warnings whose metric no evaluation has, with the setting that has it measured."""
    from tellapart.verdicts.rules import RULES

    return [f"{rule.name} ({rule.measured_by})" for rule in RULES if rule.measured_by and rule.key not in curves]


# What this machine can do for tellapart, and what each missing part costs.

Line = tuple[str, str]
"""The item, and its description."""


@dataclass(frozen=True)
class Part:
    """An optional part of the installation.

    Args:
        modules: what it installs, all of which must be there.
        cost: what is not available without it.
        extra: name of the extra that installs it; null where it is a package of its own.
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
    "liger": Part(
        ("liger_kernel", "triton"),
        "captioner.use_liger_kernel is refused; logits are computed by torch as ever",
        "liger",
    ),
    "video": Part(("av",), "videos and GIFs cannot be read, neither as clips nor by their key-frames", "video"),
    "tensorboard": Part(
        ("tensorboard",), "report_to=tensorboard is refused; metrics.jsonl is written as ever", "tensorboard"
    ),
    "pillow-heif": Part(("pillow_heif",), "HEIC photos, as of iPhones, count as damaged"),
    "ray": Part(("ray",), "shards cannot be captioned on a Ray cluster", "ray"),
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
