"""Names of the samples of a batch: rows of the data set, keys and shards, or a hash of the content.

Rows are looked up off the hot path. Keys and hashes are read while the batch is still on the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrometer.train.steps.sample_lineage import UsedBatch

HASHED_BYTES = 4_096  # of each tensor that is hashed
HASHED_PARTS = 8


# -- Batches without indices -------------------------------------------------------------------------------------------


def content_of(batch: Any, places: Mapping[str, Any]) -> list[str] | None:
    """The keys of the samples with their shards, or else a hash of the start of the batch's first parts.

    `places` are the positions of the keys in a batch that is not a mapping.
    """
    if isinstance(batch, Mapping):
        keys, shards = batch.get("__key__"), batch.get("__url__")
    elif isinstance(batch, list | tuple):
        keys, shards = (batch[places[name]] if name in places else None for name in ("__key__", "__url__"))
    else:
        keys = shards = None
    if keys is not None:
        return _with_shards(_as_list(keys), _as_list(shards))
    digest = hashlib.blake2b(digest_size=8)
    return [f"hash:{digest.hexdigest()}"] if _hash(batch, digest, 0) else None


def key_places(dataset: Any) -> dict[str, int]:
    """The positions of keys and shards in a WebDataset that returns tuples."""
    places: dict[str, int] = {}
    for stage in _own_attribute(dataset, "pipeline") or ():
        if getattr(getattr(stage, "f", None), "__name__", "").strip("_") == "to_tuple":
            fields = stage.args[0].split() if len(stage.args) == 1 else stage.args
            places = {name: place for place, name in enumerate(fields) if name in ("__key__", "__url__")}
    return places


def _as_list(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, list | tuple) else [value]


def _with_shards(keys: list[Any] | None, shards: list[Any] | None) -> list[str]:
    """A shard is named without its path, because a path may be a command with a password."""
    if keys is None:
        return []
    if shards is None or len(shards) != len(keys):
        return [str(key) for key in keys]
    return [f"{str(shard).rpartition('/')[2]}/{key}" for shard, key in zip(shards, keys, strict=True)]


def _hash(value: Any, digest: Any, depth: int) -> bool:
    """Adds a part of a batch to the digest; False if it contains nothing that can be read on the host."""
    if depth > 3:
        return False
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return sum(_hash(part, digest, depth + 1) for part in value[:HASHED_PARTS]) > 0
    if isinstance(value, str):
        digest.update(value[:HASHED_BYTES].encode("utf-8", "replace"))
    elif isinstance(value, bytes):
        digest.update(value[:HASHED_BYTES])
    elif isinstance(value, int | float):
        digest.update(repr(value).encode())
    elif hasattr(value, "data_ptr") and value.device.type == "cpu" and value.numel():
        flat = value.detach().reshape(-1)[: HASHED_BYTES // value.element_size()].contiguous()
        import torch

        digest.update(flat.view(torch.uint8).numpy())
    elif hasattr(value, "tobytes") and value.size:  # NumPy arrays and scalars
        digest.update(value.reshape(-1)[:HASHED_BYTES].tobytes()[:HASHED_BYTES])
    else:
        return False
    return True


# -- Rows of a data set, off the hot path ------------------------------------------------------------------------------


def names_of(dataset: Any, samples: Any) -> list[int | str] | None:
    """The rows of the data set behind a batch, through subsets and shuffles."""
    if samples is None:
        return None
    if not isinstance(samples, list | tuple):
        samples = [samples]
    names: list[int | str] = []
    for sample in samples:
        if isinstance(sample, str):
            names.append(sample)
        elif isinstance(sample, list | tuple):
            names.extend(_row_of(dataset, part) for part in sample)
        else:
            names.append(_row_of(dataset, sample))
    return names


def _row_of(dataset: Any, index: Any) -> int | str:
    for _ in range(8):  # subsets of subsets
        indices = _own_attribute(dataset, "indices")  # torch.utils.data.Subset
        inner = _own_attribute(dataset, "dataset")
        if indices is not None and inner is not None and hasattr(indices, "__getitem__"):
            index, dataset = indices[index], inner
            continue
        mapping = _own_attribute(dataset, "_indices")  # a Hugging Face dataset that was shuffled or selected from
        if mapping is not None and hasattr(mapping, "column"):
            index = mapping.column(0)[int(index)].as_py()
        break
    if isinstance(index, int):
        return index
    item = getattr(index, "item", None)  # integers of NumPy and PyTorch, on the host
    if item is not None and getattr(getattr(index, "device", None), "type", "cpu") == "cpu":
        try:
            index = item()
        except (ValueError, RuntimeError):
            return str(index)
    return index if isinstance(index, int) else str(index)


def _own_attribute(dataset: Any, name: str) -> Any:
    """An attribute of the data set itself. Properties are not read: one may open a file in this process, which worker
    processes that are forked later would share."""
    return getattr(dataset, "__dict__", {}).get(name)


def has_row_indices(dataset: Any) -> bool:
    """Whether the indices of a sampler are rows of the data set itself, not of a subset or a shuffled copy."""
    return _own_attribute(dataset, "indices") is None and _own_attribute(dataset, "_indices") is None


def name_of(dataset: Any) -> str:
    """A name for a data set: its class, or for Hugging Face its name and fingerprint."""
    fingerprint = _own_attribute(dataset, "_fingerprint")
    if isinstance(fingerprint, str):
        info = _own_attribute(dataset, "_info")
        title = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None) or "dataset"
        return f"{title}@{fingerprint}"
    inner = _own_attribute(dataset, "dataset")
    if inner is not None and _own_attribute(dataset, "indices") is not None:
        return name_of(inner)
    return type(dataset).__name__


class BatchNamer:
    """Converts used micro-batches to messages."""

    def batch(self, used: UsedBatch, step: int, wall_ns: int) -> dict[str, Any]:
        """The message of one micro-batch: which samples, for which step."""
        drawn = used.drawn
        loader = drawn.loader
        samples = drawn.samples
        if not (loader.indices_are_rows and type(samples) is list and samples and type(samples[0]) in (int, str)):
            dataset = loader.dataset
            samples = None if dataset is None else names_of(dataset, samples)
        message = {
            "time_ms": wall_ns // 1_000_000,
            "loader": loader.number,
            "epoch": drawn.epoch,
            "send_index": drawn.send_index,
            "micro_batch": used.micro_batch,
            "step": step,
            "dataset": loader.name,
        }
        return message if samples is None else {**message, "samples": samples}
