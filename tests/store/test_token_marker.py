"""The record that a data folder ever had a token."""

from __future__ import annotations

import pytest

from pyrometer.store.token_marker import MARKER, TOKENS, had_tokens, mark


def test_a_new_folder_had_no_tokens(tmp_path):
    assert not had_tokens(tmp_path)


@pytest.mark.parametrize("name", [TOKENS, MARKER])
def test_a_list_of_tokens_or_the_marker_counts(tmp_path, name):
    (tmp_path / name).write_text("")
    assert had_tokens(tmp_path)


def test_a_link_to_a_missing_file_counts(tmp_path):
    (tmp_path / TOKENS).symlink_to(tmp_path / "missing")
    assert had_tokens(tmp_path)


def test_mark_is_written_once(tmp_path):
    mark(tmp_path)
    assert "pyrometer token create" in (tmp_path / MARKER).read_text()
    (tmp_path / MARKER).write_text("kept")
    mark(tmp_path)
    assert (tmp_path / MARKER).read_text() == "kept"
