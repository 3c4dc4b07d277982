"""Scrapes that are reassembled from pieces."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.gpu import whole_scrapes
from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.samples import Values
from pyrometer.collect.gpu.whole_scrapes import WholeScrapes
from pyrometer.collect.prometheus.remote_write import RemoteWriteReader
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from tests.support.exporter_texts import Gpu
from tests.support.remote_write_bodies import body_of, series_of

NOW_MS = 1_794_700_000_000
NODE_A = [Gpu(0, pod="train-0"), Gpu(1, power_w=None, xid=79), Gpu(2, instance=3)]
NODE_B = [Gpu(0, host="node-b", gpu_util=100, sm_active=0, graphics=0, tensor=0, dram=0)]  # lost counters


def read(body):
    return RemoteWriteReader().read(body, NOW_MS)


def records(samples):
    """The records of values, in one order."""
    return sorted(map(repr, Dcgm(lambda host: None, near_idle_power_w).take(list(samples)).records))


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.sampled_from([1, 30, 10**6]))
def test_whole_scrapes_reassemble_any_pieces(chance: random.Random, piece, batch_size):
    """Cut anywhere, in any order, with some samples repeated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_scrapes, "VALUES_PER_BATCH", batch_size)
        _in_pieces(chance, piece)


def _in_pieces(chance: random.Random, piece: int) -> None:
    whole = [
        sample
        for scrape in range(3)
        for sample in read(body_of(series_of(NODE_A + NODE_B, NOW_MS + 15_000 * scrape))).samples
    ]
    sent = whole + chance.sample(whole, 10)
    chance.shuffle(sent)
    scrapes = WholeScrapes()
    for begin in range(0, len(sent), piece):
        scrapes.add(Values.of(sent[begin : begin + piece]), arrived_s=begin)
    assert scrapes.waiting == len(sent)
    batches = [list(batch) for batch in scrapes.take(before_s=len(sent))]
    settled = [sample for batch in batches for sample in batch]
    assert records(settled) == records(whole)
    assert Counter(settled) == Counter(sent)
    for batch in batches:
        assert [sample[3] for sample in batch] == sorted(sample[3] for sample in batch)
    in_batches = [{(place.hosts[0], time_ms) for _, place, _, time_ms in batch} for batch in batches]
    assert sum(map(len, in_batches)) == len(set().union(*in_batches))  # no scrape is in two of them
    assert (scrapes.waiting, scrapes.take(before_s=float("inf"))) == (0, [])


def test_whole_scrapes_wait_from_first_piece():
    first = list(read(body_of(series_of(NODE_A, NOW_MS))).samples)
    second = read(body_of(series_of(NODE_A, NOW_MS + 15_000))).samples
    scrapes = WholeScrapes()
    scrapes.add(Values.of(first[:5]), arrived_s=10)
    scrapes.add(second, arrived_s=11)
    scrapes.add(Values.of(first[5:]), arrived_s=12)
    assert scrapes.take(before_s=10) == []
    (settled,) = scrapes.take(before_s=10.5)
    assert list(settled) == first
    assert scrapes.waiting == len(second)
    (settled,) = scrapes.take(before_s=11.5)
    assert list(settled) == list(second)
