"""XIDs: hardware failures and program errors are separate, and few codes leave a GPU in service."""

from __future__ import annotations

from pyrometer.model.xids import FATAL_XIDS, HARDWARE_XIDS, PROGRAM_XIDS


def test_hardware_and_program_xids_do_not_overlap():
    assert not set(HARDWARE_XIDS) & set(PROGRAM_XIDS)


def test_contained_memory_error_is_the_only_hardware_xid_that_is_not_fatal():
    assert set(HARDWARE_XIDS) - FATAL_XIDS == {94}
    assert not FATAL_XIDS & set(PROGRAM_XIDS)
