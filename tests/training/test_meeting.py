"""The processes of a start find each other, whatever an earlier start left in the store."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.errors import UsageError
from tellapart.training.meeting import init_method, met


def started(store, waits):
    """The names that processes get which come after so many seconds."""

    def process(rank):
        time.sleep(waits[rank])
        return met(store, rank, len(waits), longest=timedelta(seconds=20))

    with ThreadPoolExecutor(len(waits)) as threads:
        return list(threads.map(process, range(len(waits))))


@given(st.lists(st.lists(st.sampled_from([0.0, 0.02, 0.12]), min_size=3, max_size=3), min_size=2, max_size=3))
@settings(max_examples=10)
def test_every_start_has_a_name_of_its_own(starts):
    store = dist.HashStore()
    names = [started(store, waits) for waits in starts]
    assert all(len(set(each)) == 1 for each in names), "all processes of a start agree"
    assert len({each[0] for each in names}) == len(starts), "and none reads what an earlier one wrote"


@pytest.mark.parametrize("late", [0, 1])
def test_who_waits_in_vain_says_so(late):
    store = dist.HashStore()
    started(store, [0.0, 0.0])
    with pytest.raises(UsageError, match="the 2 processes of this start did not find each other within 0:00:01"):
        met(store, 1 - late, 2, longest=timedelta(seconds=1))


def test_it_is_for_stores_that_outlive_a_restart(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert init_method() is None
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert init_method() == "tellapart://"
