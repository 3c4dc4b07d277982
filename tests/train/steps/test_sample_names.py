"""Names of samples: rows, keys with shards, or a hash of the content."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from pyrometer.train.steps.sample_lineage import DrawnBatch, UsedBatch, WatchedLoader
from pyrometer.train.steps.sample_names import BatchNamer, content_of, has_row_indices, key_places, name_of, names_of


class Rows:
    pass


def subset(dataset: object, indices: list[int]) -> SimpleNamespace:
    return SimpleNamespace(dataset=dataset, indices=indices)


def test_content_of_a_mapping_is_its_keys_with_shards():
    assert content_of({"__key__": ["a", "b"], "__url__": ["/x/1.tar", "pipe:curl -u me:word x/2.tar"]}, {}) == [
        "1.tar/a",
        "2.tar/b",
    ]
    assert content_of({"__key__": "a"}, {}) == ["a"]
    assert content_of({"__key__": ["a", "b"], "__url__": ["one"]}, {}) == ["a", "b"]


def test_content_of_a_tuple_uses_the_places_of_the_keys():
    assert content_of((1.0, ["a", "b"]), {"__key__": 1}) == ["a", "b"]


def test_content_without_keys_is_a_hash_of_its_values():
    (first,) = content_of({"x": np.arange(4), "text": "one"}, {})
    (same,) = content_of({"x": np.arange(4), "text": "one"}, {})
    (other,) = content_of({"x": np.arange(4), "text": "two"}, {})
    assert first.startswith("hash:")
    assert first == same != other
    assert content_of(object(), {}) is None
    assert content_of([], {}) is None


def test_key_places_are_read_from_a_webdataset_pipeline():
    def to_tuple() -> None:
        pass

    stages = [SimpleNamespace(f=to_tuple, args=("x __key__ __url__",))]
    assert key_places(SimpleNamespace(pipeline=stages)) == {"__key__": 1, "__url__": 2}
    stages = [SimpleNamespace(f=to_tuple, args=("__key__", "x"))]
    assert key_places(SimpleNamespace(pipeline=stages)) == {"__key__": 0}
    assert key_places(Rows()) == {}


def test_names_of_follow_nested_subsets():
    inner = subset(Rows(), [10, 20, 30, 40])
    outer = subset(inner, [3, 1])
    assert names_of(outer, [0, 1]) == [40, 20]
    assert names_of(Rows(), [np.int64(2), "key", (4, 5)]) == [2, "key", 4, 5]
    assert names_of(Rows(), 7) == [7]
    assert names_of(Rows(), None) is None


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (Rows(), "Rows"),
        (subset(Rows(), [1]), "Rows"),
        (SimpleNamespace(_fingerprint="ab12", _info=SimpleNamespace(dataset_name="c4")), "c4@ab12"),
        (SimpleNamespace(_fingerprint="ab12"), "dataset@ab12"),
    ],
)
def test_name_of_is_the_class_or_the_fingerprint(dataset, name):
    assert name_of(dataset) == name


def test_has_row_indices_is_false_for_subsets_and_shuffles():
    assert has_row_indices(Rows())
    assert not has_row_indices(subset(Rows(), [1]))
    assert not has_row_indices(SimpleNamespace(_indices=object()))


def test_batch_namer_looks_up_rows_while_the_data_set_exists():
    rows = subset(Rows(), [5, 6, 7])
    loader = WatchedLoader(2, rows, deque())
    loader.begin_epoch()
    used = UsedBatch(3, 1, 500, DrawnBatch(loader, 0, 4, [0, 2]))
    message = BatchNamer().batch(used, 103, 9_000_000)
    assert message == {
        "time_ms": 9,
        "loader": 2,
        "epoch": 0,
        "send_index": 4,
        "micro_batch": 1,
        "step": 103,
        "dataset": "Rows",
        "samples": [5, 7],
    }
