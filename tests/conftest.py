"""Settings shared by all tests: one torch thread, no network, a cache of its own."""

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # the threads that read weights cost tiny models a fifth of it

import pytest
from hypothesis import settings

# Looking through all objects of transformers for garbage again and again took a twentieth of the tests' time.
gc.set_threshold(*gc.get_threshold()[:2], 100)

# A busy machine is no failure: what is asked is what code does, not how long it takes.
settings.register_profile("tellapart", deadline=None)
settings.load_profile("tellapart")

FIRST = (
    *("test_world_stages.py", "test_every_family.py", "test_meteor_reference.py", "test_caption_kills.py"),
    *("test_kept_results.py", "test_numerics.py"),
)
"""Files that begin: one process builds all the world's stages while the other is busy with what needs none."""

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly as well")


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed out in the order below, not those of the most tests first: a long file at the end runs alone.

    Signals that a shell has what runs in the background ignore are heard again, for programs that tests start would inherit that.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if hasattr(config.option, "loadscopereorder"):  # of pytest-xdist, where it is used
        config.option.loadscopereorder = False


def pytest_collection() -> None:
    """Before tests are imported. The process that only hands them out never comes here and needs no torch: importing it alone
    takes five seconds, for which the others wait."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What imports left is not looked through for garbage again, which nothing of it becomes."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first, so that processes that share the tests end together; nightly tests wait for ``--nightly``."""
    if not config.getoption("nightly"):
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason="runs nightly: give --nightly"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    turn = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(FIRST) + (item.path not in slow)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real photos and captions, which the project does not ship."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the COCO sample (shared/data) is not beside the project")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory):
    """Nothing is read from or written to the user's own cache; built once a session, by whichever process comes first."""
    before, base = os.environ.get("TELLAPART_CACHE"), tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (shared / "cache").mkdir(exist_ok=True)
    os.environ["TELLAPART_CACHE"] = str(shared / "cache")
    yield
    if before is None:
        del os.environ["TELLAPART_CACHE"]
    else:
        os.environ["TELLAPART_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def files_are_left_to_the_system():
    """Waiting until files are on the disk takes a tenth of a training's time here; no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda opened: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def configurations_are_not_printed():
    """transformers prints every configuration it reads for a log that is off, and in errors that it catches: a tenth of the time
    of tests that load captioners."""
    from transformers import GenerationConfig, PreTrainedConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreTrainedConfig, "__repr__", object.__repr__)
        patch.setattr(GenerationConfig, "__repr__", object.__repr__)
        yield


@pytest.fixture(scope="session", autouse=True)
def numbers_are_drawn_into_memory_only():
    """transformers builds a model on no device before it reads the weights. What its layers draw there has no numbers and takes
    none from a generator, but goes through torch in Python: a twelfth of the time of tests of commands."""
    import torch

    draw = torch.nn.init._no_grad_normal_

    def drawn(tensor, *arguments, **options):
        return tensor if tensor.is_meta else draw(tensor, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.init, "_no_grad_normal_", drawn)
        yield


@pytest.fixture(autouse=True)
def same_random_numbers():
    """What a test draws does not depend on the tests before it."""
    from tellapart.draws import seed_torch

    seed_torch(0)
