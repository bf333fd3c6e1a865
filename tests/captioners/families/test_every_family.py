"""Contract, methods, adapters, resuming and plain reloading, for every family."""

from collections.abc import Callable
from pathlib import Path

import pytest

from family_checks import (
    METHODS,
    TINY,
    Fit,
    check_contract,
    check_reload,
    check_resume,
    check_training,
    fit,
    fit_for_resuming,
)
from tellapart.captioners.families import FAMILIES

families = pytest.mark.parametrize("family", TINY)


@pytest.fixture(scope="module")
def scst(tmp_path_factory) -> Callable[[str], tuple[Path, Fit]]:
    """Family -> a folder, and what two steps of SCST made in it, with a checkpoint of each: trained once for two tests."""
    made: dict[str, tuple[Path, Fit]] = {}

    def of(family: str) -> tuple[Path, Fit]:
        if family not in made:
            folder = tmp_path_factory.mktemp("family")
            made[family] = folder, fit_for_resuming(family, folder)
        return made[family]

    return of


@families
def test_contract(family, tmp_path):
    check_contract(family, tmp_path)


@families
@pytest.mark.parametrize(
    "method",
    [
        "xe",
        "scst",
        pytest.param("dico", marks=pytest.mark.nightly),  # an adapter trains with it on every change, below
    ],
)
def test_every_method_trains_and_the_result_is_read_by_plain_libraries(family, method, scst):
    folder, trained = scst(family)
    result = trained if method == "scst" else fit(family, method, folder, out=method)
    check_training(result)
    if method != "xe":
        check_reload(result)


def test_all_methods_are_tried():
    assert set(METHODS) == {"xe", "scst", "dico"}


@families
def test_an_adapter_trains_and_the_result_is_read_by_plain_libraries(family, tmp_path):
    """The method that draws, scores and learns in one: what an adapter is does not depend on the method."""
    result = fit(family, "dico", tmp_path, lora=True, out="dico")
    check_training(result)
    check_reload(result)


@families
def test_resuming_changes_no_bit(family, scst):
    check_resume(family, *scst(family))


def test_every_family_is_here():
    assert len(FAMILIES) > 1
