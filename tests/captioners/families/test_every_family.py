"""Contract, methods, adapters, resuming and plain reloading, for every family."""

import pytest

from family_checks import METHODS, TINY, check_contract, check_reload, check_resume, check_training, fit
from tellapart.captioners.families import FAMILIES

families = pytest.mark.parametrize("family", TINY)


@families
def test_contract(family, tmp_path):
    check_contract(family, tmp_path)


@families
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_method_trains_and_the_result_is_read_by_plain_libraries(family, lora, tmp_path):
    # Under an adapter, the method that draws, scores and learns in one: what an adapter is does not depend on the method.
    for method in ["dico"] if lora else METHODS:
        result = fit(family, method, tmp_path, lora=lora, out=method)
        check_training(result)
    check_reload(result)


@families
def test_resuming_changes_no_bit(family, tmp_path):
    check_resume(family, tmp_path)


def test_every_family_is_here():
    assert len(FAMILIES) > 1
