"""Hooks on data loaders: how long the training thread waits for a batch, and which samples are in it."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.optimizer_hooks import SETTLED_STEPS
from pyrometer.train.hooks.patching import Original, wrap
from pyrometer.train.hooks.tensors import collect_tensors
from pyrometer.train.steps import ring
from pyrometer.train.steps.sample_names import content_of

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks
    from pyrometer.train.steps.sample_lineage import WatchedLoader

_MAP_STYLE = 0  # `_DatasetKind.Map`: a data set with indices


class DataLoaderHooks:
    """The hooks on iterators of `DataLoader`. An iterator carries its loader's record as `_pyrometer`."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._loaders: weakref.WeakKeyDictionary[Any, WatchedLoader] = weakref.WeakKeyDictionary()
        self._tensor_type: type = object

    def install(self, torch: Any) -> None:
        """Hooks the iterators of all data loaders."""
        self._tensor_type = torch.Tensor
        module = torch.utils.data.dataloader
        wrap(module._BaseDataLoaderIter, "__init__", self._new_iterator)
        wrap(module._BaseDataLoaderIter, "__next__", self._fetch_hook())
        wrap(module._BaseDataLoaderIter, "_next_index", self._next_index)
        for cls in (module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter):
            wrap(cls, "_reset", self._reset)

    def forget(self) -> None:
        """Forgets all loaders."""
        self._loaders = weakref.WeakKeyDictionary()

    def _new_iterator(self, original: Original, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            record = self._loaders.get(loader)
            if record is None:
                record = self._loaders[loader] = self._hooks.lineage.loader(loader.dataset)
            record.begin_epoch()
            iterator._pyrometer = record
        except Exception as error:
            self._hooks.disable(error)
        return original(iterator, loader, *args, **kwargs)

    def _reset(self, original: Original, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        record = iterator.__dict__.get("_pyrometer")
        if record is not None and record.drawn_count:  # else this is its first epoch
            record.begin_epoch()
        return original(iterator, *args, **kwargs)

    def _next_index(self, original: Original, iterator: Any) -> Any:
        index = original(iterator)
        record = iterator.__dict__.get("_pyrometer")
        if record is not None:
            record.sent[iterator.__dict__.get("_send_idx", -1)] = index
        return index

    def _fetch_hook(self) -> Original:
        hooks = self._hooks

        def fetch(original: Original, iterator: Any) -> Any:
            rank = hooks.rank
            recorder = None if rank is None else rank.recorder
            record = iterator.__dict__.get("_pyrometer")
            entered = False
            if recorder is not None and not recorder.inside:  # of a loader in a loader, only the outer one counts
                if recorder.every > 1:  # from now on every micro-batch counts
                    recorder.every, recorder.light = 1, False
                if recorder.evaluating and record is not None and record.trains:
                    recorder.evaluating = False
                entered = recorder.enter(ring.EVALUATE if recorder.evaluating else ring.DATA)
                if not entered and record is not None:
                    record.missed()
                if hooks.optimizer_steps <= SETTLED_STEPS and rank is not None:
                    rank.progress.still_in_loop(sys._getframe())
            watched = record is not None and (entered or recorder is None)
            outstanding = None
            if watched:
                try:
                    hooks.lineage.before_draw(record)
                    if not iterator.__dict__.get("_in_order", True):
                        outstanding = set(iterator._task_info)
                except Exception as error:
                    hooks.disable(error)
            try:
                data = original(iterator)
            except StopIteration:
                if watched:
                    record.exhausted()
                raise
            finally:
                if entered and recorder is not None:
                    recorder.leave()
            if watched:
                try:
                    self._drawn(iterator, record, data, outstanding)
                except Exception as error:
                    hooks.disable(error)
            return data

        return fetch

    def _drawn(self, iterator: Any, record: WatchedLoader, data: Any, outstanding: set[int] | None) -> None:
        """Records the samples of a batch. `outstanding` are the batches of a loader without order before this one."""
        received = iterator.__dict__.get("_rcvd_idx")
        if received is None:  # the loader works in this process: the batch has the newest indices
            number, index = record.drawn_count, record.sent.pop(-1, None)
        elif outstanding is None:
            number = received - 1
            index = record.sent.pop(number, None)
        else:  # the batch that is no longer outstanding
            arrived = outstanding.difference(iterator._task_info)
            number = arrived.pop() if len(arrived) == 1 else -1 - record.drawn_count
            index = record.sent.pop(number, None)
        if not record.drawn_count:
            record.drawn_by(sys._getframe(2))
        if iterator._dataset_kind != _MAP_STYLE:
            index = content_of(data, record.places)
        tensors: list[Any] = []
        collect_tensors(data, self._tensor_type, tensors)
        self._hooks.lineage.drawn(record, number, index, tuple([weakref.ref(tensor) for tensor in tensors]))
