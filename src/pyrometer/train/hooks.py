"""Where PyTorch is watched: loaders, forward, backward, optimizers, saves. Each hook is a few marks on the recorder.

The rules of the house: what the program called is called exactly once with what it was given; its result and its
exceptions pass through untouched; an error of ours switches the SDK off and is never seen by the program; nothing here
synchronises a device, draws a random number, or is there while `torch.compile` traces.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pyrometer.train import ring
from pyrometer.train.flops import COUNT_AT, countable, counter
from pyrometer.train.lineage import Lineage, content_of
from pyrometer.train.roots import Roots

if TYPE_CHECKING:
    from pyrometer.train.rank import TrainingRank

Original = Callable[..., Any]
MOST_TENSORS, MOST_DEPTH = 4, 3  # by which a batch is recognised
MOST_OPTIMIZERS = 16  # whose models are looked for: it takes a look at all objects there are
LEAST_GENERATION = 2  # of the garbage collections that are worth a mark
SETTLED = 4  # steps of an optimizer after which its model is known
MOST_LAST = 4  # parameters that may be the last one to get its gradient, where not all of them are used in every step
_STEP_KEYS = ("global_step", "step", "iter_num", "iteration", "iter", "num_updates", "steps", "current_step")


class Hooks:
    """The hooks of one process. They do nothing until there is a rank, and nothing after it was let go."""

    def __init__(self, start: Callable[[], TrainingRank | None]) -> None:
        self.rank: TrainingRank | None = None
        self.lineage = Lineage()  # from the start: a loader may be asked before there is an optimizer
        self.tracked: dict[tuple[str, str], str] = {}  # runs of trackers that the program has: kind and name, words
        self._start = start  # the first sign of training
        self._installed: set[str] = set()
        self._loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._optimizer_steps = 0
        self._unscaled: tuple[Any, Any] | None = None
        self._settling: dict[int, int] = {}  # steps of each optimizer, the first few
        self._learning: list[_Learning] = []  # models whose last gradient is looked for
        self._learnt: weakref.WeakSet[Any] = weakref.WeakSet()
        self._synchronised = False
        self._counting: Any = None  # counts the operations of one step; False: it does not, or no longer
        self._aside = False  # an optimizer steps, and it is no step
        self._forked = False
        self.roots: Roots | None = None
        self._loaded: tuple[str, int, int | None] | None = None  # the newest file that was read: path, ms, step
        self.observes_memory = False
        self.faulthandler_taken = False  # there is one watchdog in a process, and the program wants it
        self.dump_traceback_later = faulthandler.dump_traceback_later
        self.arming = threading.Lock()
        _wrap(faulthandler, "dump_traceback_later", self._program_watches)

    def broken(self, error: BaseException) -> None:
        """An error of ours: from here on the program runs as if there were no SDK."""
        rank, self.rank = self.rank, None
        if rank is not None:
            rank.broken(error)

    def let_go(self) -> None:
        """The rank is over, or this is a fork of its process."""
        self.rank = None
        self._optimizer_steps = 0
        self._settling = {}
        self._unscaled = self._loaded = self._counting = None
        self._learning = []
        self._learnt = weakref.WeakSet()
        self._synchronised = self._aside = self._forked = False
        self._loaders = weakref.WeakKeyDictionary()
        self.lineage = Lineage()
        if self.roots is not None:
            self.roots.forget()

    def before_fork(self) -> None:
        """Stops the watchdog for stacks until the next beat: its thread is not copied, and a fork would wait for it."""
        self.arming.acquire()
        if self.rank is not None and not self.faulthandler_taken:
            faulthandler.cancel_dump_traceback_later()

    def after_fork(self) -> None:
        """In the process that forked."""
        self.arming.release()

    def forked(self) -> None:
        """This is a copy of the process. It may become a rank of its own, with an optimizer from before the fork."""
        self.arming.release()
        self.let_go()
        self._forked = True

    def _program_watches(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        self.faulthandler_taken = True
        return original(*args, **kwargs)

    # -- installing ---------------------------------------------------------------------------------------------------

    def install(self, name: str, module: Any) -> None:
        """A module was imported: puts the hooks into it, once."""
        install = _INSTALL.get(name)
        if install is None or name in self._installed:
            return
        self._installed.add(name)
        try:
            install(self, module)
        except Exception as error:
            self.broken(error)

    def _torch(self, torch: Any) -> None:
        self.roots = Roots(torch, self._forward)
        self._grad_enabled = torch.is_grad_enabled
        self._is_compiling = torch.compiler.is_dynamo_compiling  # a constant for whoever traces
        self._tensor = torch.Tensor
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)
        _wrap(torch.optim.Optimizer, "__init__", self._new_optimizer)
        _wrap(torch.optim.Optimizer, "load_state_dict", self._restored)
        _replace(torch.autograd, "backward", self._backward)
        for module in (torch.serialization, torch):
            _wrap(module, "save", self._saving)
            _wrap(module, "load", self._loading)
        loaders = torch.utils.data.dataloader
        _wrap(loaders._BaseDataLoaderIter, "__init__", self._new_iterator)
        _wrap(loaders._BaseDataLoaderIter, "__next__", self._next)
        _wrap(loaders._BaseDataLoaderIter, "_next_index", self._next_index)
        for cls in (loaders._BaseDataLoaderIter, loaders._MultiProcessingDataLoaderIter):
            _wrap(cls, "_reset", self._reset)
        _wrap(torch.amp.grad_scaler.GradScaler, "step", self._scaler_step)
        _wrap(torch.amp.grad_scaler.GradScaler, "scale", self._scaler_scale)
        if torch.distributed.is_available():
            for module in (torch.distributed.distributed_c10d, torch.distributed):
                _wrap(module, "init_process_group", self._rendezvous)
        gc.callbacks.append(self._collecting)

    def _dynamo(self, callback: Any) -> None:
        entered: list[bool] = []

        def begins(original: Original, *args: Any) -> Any:
            rank = self.rank
            entered.append(rank is not None and rank.recorder.enter(ring.COMPILE))
            return original(*args)

        def ends(original: Original, *args: Any) -> Any:
            rank = self.rank
            if entered and entered.pop() and rank is not None:
                rank.recorder.leave()
                rank.compiled()
            return original(*args)

        # not as its callbacks: `torch._dynamo.reset` forgets those
        _wrap(callback.CompilationCallbackHandler, "run_start_callbacks", begins)
        _wrap(callback.CompilationCallbackHandler, "run_end_callbacks", ends)

    def _checkpoint(self, module: Any) -> None:
        for name in ("save", "async_save"):
            if hasattr(module, name):
                _wrap(module, name, self._saving)
        if hasattr(module, "load"):
            _wrap(module, "load", self._loading)

    def _checkpoint_state(self, module: Any) -> None:
        _wrap(module, "_init_optim_state", self._not_a_step)

    def _not_a_step(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """An optimizer steps with zeros, so that it has a state that can be saved or loaded."""
        was, self._aside = self._aside, True
        try:
            return original(*args, **kwargs)
        finally:
            self._aside = was

    def _safetensors(self, module: Any) -> None:
        _wrap(module, "save_file", self._saving)

    def _fsdp(self, module: Any) -> None:
        """FSDP2 on the host: what it waits for is communication. On a GPU only streams wait: nothing is seen here.

        On a CPU `unshard` gathers the parameters and waits for that, `post_backward` likewise with the gradients; the
        other two wait where something was begun ahead. Ranks meet several times in a step: whoever is late in a phase
        makes the others wait in that same phase.
        """
        for name in ("unshard", "wait_for_unshard", "finalize_backward", "post_backward"):
            if hasattr(module.FSDPParamGroup, name):
                _wrap(module.FSDPParamGroup, name, self._waiting)

    # -- data ---------------------------------------------------------------------------------------------------------

    def _new_iterator(self, original: Original, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            book = self._loaders.get(loader)
            if book is None:
                book = self._loaders[loader] = self.lineage.loader(loader.dataset)
            book.begin_epoch()
            iterator._pyrometer = book
        except Exception as error:
            self.broken(error)
        return original(iterator, loader, *args, **kwargs)

    def _reset(self, original: Original, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        book = iterator.__dict__.get("_pyrometer")
        if book is not None and book.taken:  # else it is its first epoch
            book.begin_epoch()
        return original(iterator, *args, **kwargs)

    def _next_index(self, original: Original, iterator: Any) -> Any:
        index = original(iterator)
        book = iterator.__dict__.get("_pyrometer")
        if book is not None:
            book.sent[iterator.__dict__.get("_send_idx", -1)] = index
        return index

    def _next(self, original: Original, iterator: Any) -> Any:
        rank = self.rank
        recorder = None if rank is None else rank.recorder
        book = iterator.__dict__.get("_pyrometer")
        entered = False
        if recorder is not None and not recorder.inside:  # a loader in a loader: the outer one waits
            if recorder.every > 1:  # from now on every micro-batch counts
                recorder.every, recorder.light = 1, False
            if recorder.evaluating and book is not None and book.trains:
                recorder.evaluating = False
            entered = recorder.enter(ring.EVALUATE if recorder.evaluating else ring.DATA)
            if not entered and book is not None:
                book.missed()
            if self._optimizer_steps <= SETTLED and rank is not None:
                rank.still_in_loop(sys._getframe())
        watched = book is not None and (entered or recorder is None)
        before = None
        if watched:
            try:
                self.lineage.ask(book)
                if not iterator.__dict__.get("_in_order", True):
                    before = set(iterator._task_info)
            except Exception as error:
                self.broken(error)
        try:
            data = original(iterator)
        except StopIteration:
            if watched:
                book.exhausted()
            raise
        finally:
            if entered and recorder is not None:
                recorder.leave()
        if watched:
            try:
                self._drawn(iterator, book, data, before)
            except Exception as error:
                self.broken(error)
        return data

    def _drawn(self, iterator: Any, book: Any, data: Any, before: set[int] | None) -> None:
        received = iterator.__dict__.get("_rcvd_idx")
        if received is None:  # it loads in this process: what was asked for last
            number, index = book.taken, book.sent.pop(-1, None)
        elif before is None:
            number = received - 1
            index = book.sent.pop(number, None)
        else:  # batches come in any order: the one that is not waited for any more
            came = before.difference(iterator._task_info)
            number = came.pop() if len(came) == 1 else -1 - book.taken
            index = book.sent.pop(number, None)
        if not book.taken:
            book.drawn_by(sys._getframe(2))
        if iterator._dataset_kind != 0:  # no indices in an iterable
            index = content_of(data, book.places)
        tensors: list[Any] = []
        _tensors_in(data, self._tensor, tensors)
        self.lineage.drawn(book, number, index, tuple([weakref.ref(tensor) for tensor in tensors]))

    # -- forward and backward -----------------------------------------------------------------------------------------

    def _forward(self, original: Original) -> Original:
        """What is called in the place of a class' `__call__`: for the model itself, and all others of its class."""
        assert self.roots is not None  # noqa: S101 - torch is there
        is_compiling, grad_enabled, tensor_type = self._is_compiling, self._grad_enabled, self._tensor
        held, called = self.roots.held, self.roots.called
        compiler = sys.modules["torch.compiler"]

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            rank = None if is_compiling() else self.rank
            if rank is None or id(module) not in held or compiler._is_compiling_flag:
                return original(module, *args, **kwargs)
            recorder = rank.recorder
            gradients = grad_enabled()
            if recorder.light and gradients:
                return original(module, *args, **kwargs)
            if recorder.inside and not (gradients and recorder.phase == ring.OPTIMIZER):  # but for its closure, this
                return original(module, *args, **kwargs)  # is a part of something larger: a recomputation in backward
            if gradients:
                recorder.evaluating = False
                entered = recorder.enter(ring.FORWARD)
            else:
                entered = recorder.enter_evaluation()
            if entered:
                try:
                    called.add(id(module))
                    if len(args) == 1 and not kwargs and type(args[0]) is tensor_type:
                        tensors: Any = args
                    else:
                        tensors = []
                        _tensors_in(args, tensor_type, tensors)
                        if kwargs:
                            _tensors_in(kwargs, tensor_type, tensors)
                    if self.lineage.loaders:
                        self.lineage.forward(recorder.count, recorder.last_ns, tensors, gradients=gradients)
                    if not gradients:
                        recorder.work.evaluation(id(module))
                    elif tensors:
                        recorder.work.forward(id(module), tensors, training=module.training)
                except Exception as error:
                    self.broken(error)
            try:
                if entered and gradients and recorder.count == COUNT_AT:
                    return self._counted(rank, original, module, *args, **kwargs)
                return original(module, *args, **kwargs)
            finally:
                if entered:
                    recorder.leave()

        return call

    def _counted(self, rank: TrainingRank, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Calls it once, and counts its operations: a forward or a backward of the step that is counted."""
        try:
            roots = list(self.roots.modules.values()) if self.roots is not None else []
            if self._counting is None:
                self._counting = counter() if not rank.flops and countable(roots) else False
            counting = self._counting
        except Exception as error:
            self.broken(error)
            counting = False
        if not counting:
            return original(*args, **kwargs)
        with counting:
            return original(*args, **kwargs)

    def _backward(self, original: Original) -> Original:
        is_compiling = self._is_compiling

        def backward(*args: Any, **kwargs: Any) -> Any:
            rank = self.rank
            if is_compiling() or rank is None or rank.recorder.light:
                return original(*args, **kwargs)
            recorder = rank.recorder
            in_closure = recorder.inside and recorder.phase == ring.OPTIMIZER
            entered = (not recorder.inside or in_closure) and recorder.enter(ring.BACKWARD)
            if entered:
                try:
                    if not in_closure:  # a closure may be called several times, on the same batch
                        recorder.work.backward()
                    if self.lineage.loaders:
                        self.lineage.backward(recorder.count, recorder.last_ns)
                    self._loss(rank, args[0] if args else kwargs.get("tensors"))
                    if self._optimizer_steps <= SETTLED:
                        rank.still_in_loop(sys._getframe())
                except Exception as error:
                    self.broken(error)
            try:
                if entered and self._counting and recorder.count == COUNT_AT:
                    return self._counted(rank, original, *args, **kwargs)
                return original(*args, **kwargs)
            finally:
                if entered:
                    recorder.leave()
                    if self._learning:
                        self._learn()

        return backward

    def _loss(self, rank: TrainingRank, loss: Any) -> None:
        if type(loss) is not self._tensor:
            loss = _whole(loss, self._tensor)
        if loss is None or loss.numel() != 1:
            return
        if self._unscaled is not None:
            scaled, before = self._unscaled
            self._unscaled = None
            if scaled() is loss:
                unscaled = before()
                loss = loss if unscaled is None else unscaled
        rank.metrics.backward(loss, rank.recorder.device)

    def _scaler_scale(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        scaled = original(*args, **kwargs)
        outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
        if self.rank is not None and isinstance(outputs, self._tensor):
            self._unscaled = (weakref.ref(scaled), weakref.ref(outputs))
        return scaled

    # -- optimizers ---------------------------------------------------------------------------------------------------

    def _new_optimizer(self, original: Original, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        if self.rank is None:
            self._become_rank()
        if self.rank is not None:
            if not self._optimizer_steps:
                self.rank.recorder.adopt_thread()  # some frameworks train in another thread than the one they begin in
            self.rank.recorder.expect(optimizer)
            self._settling[id(optimizer)] = 0
            self.lineage.sees_forwards = False  # perhaps of another model
        return result

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_compiling() or self._aside:
            return
        rank = self.rank or self._became_rank()
        if rank is None:
            return
        self._optimizer_steps += 1
        if self._optimizer_steps == 1:
            rank.recorder.adopt_thread()
        if not rank.recorder.light:
            rank.recorder.enter_optimizer(optimizer)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        rank = self.rank
        if self._is_compiling() or self._aside or rank is None:
            return
        recorder = rank.recorder
        if recorder.light:
            ends = recorder.ends
            ends.append(perf_counter_ns())
            recorder.count += 1
            if len(ends) >= recorder.every - 1 or recorder.marks:
                recorder.passed()
            return
        counts = self._counting and recorder.count == COUNT_AT
        if not recorder.leave_optimizer(optimizer):
            return
        if counts:
            rank.counted(self._counting.total)
        done = self._settling.get(id(optimizer), 0)
        if done < SETTLED:  # the model is looked for when it is complete: wrapped, compiled, on its device
            self._settling[id(optimizer)] = done + 1
            try:
                self._settle(rank, optimizer, first=not done)
            except Exception as error:
                self.broken(error)
            recorder.include()

    def _became_rank(self) -> TrainingRank | None:
        """An optimizer from before a fork makes this process a rank."""
        if self._forked:
            self._forked = False
            self._become_rank()
        return self.rank

    def _become_rank(self) -> None:
        try:
            self.rank = self._start()
        except Exception as error:
            self.broken(error)

    def _settle(self, rank: TrainingRank, optimizer: Any, *, first: bool) -> None:
        assert self.roots is not None  # noqa: S101 - torch is there
        if first:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if self._optimizer_steps == 1:
                rank.first_step(optimizer, parameters)
            if len(self._settling) <= MOST_OPTIMIZERS:
                self.roots.find(id(optimizer), parameters)
        else:
            self.roots.settle(id(optimizer))
        for module in self.roots.of_type("DistributedDataParallel"):
            if module not in self._learnt:
                self._learnt.add(module)
                self._learning.append(_Learning(module, self._ready))

    def _learn(self) -> None:
        try:
            self._learning = [learning for learning in self._learning if not learning.learned()]
        except Exception as error:
            self.broken(error)

    def _ready(self, _: Any) -> None:
        rank = self.rank
        if rank is not None and not self._is_compiling():
            rank.recorder.ready()

    def _scaler_step(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        before = self._optimizer_steps
        result = original(*args, **kwargs)
        rank, optimizer = self.rank, args[1] if len(args) > 1 else kwargs.get("optimizer")
        if rank is not None and self._optimizer_steps == before and rank.recorder.enter_optimizer(optimizer):
            rank.recorder.leave_optimizer(optimizer, skipped=True)
        return result

    # -- saves, restores, waits ---------------------------------------------------------------------------------------

    def _saving(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        rank = self.rank
        if rank is None:
            return original(*args, **kwargs)
        recorder = rank.recorder
        outermost = recorder.phase != ring.CHECKPOINT or not recorder.inside
        entered = outermost and recorder.enter(ring.CHECKPOINT)
        began = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                recorder.leave()
                try:
                    rank.saved(_path_in(args, kwargs), perf_counter_ns() - began)
                except Exception as error:
                    self.broken(error)

    def _loading(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        result = original(*args, **kwargs)
        try:
            state = result if result is not None else args[0] if args else kwargs.get("state_dict")  # loaded in place
            self._loaded = (_path_in(args, kwargs), (perf_counter_ns() - began) // 1_000_000, _step_in(state))
        except Exception as error:
            self.broken(error)
        return result

    def _restored(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            state = args[1] if len(args) > 1 else kwargs["state_dict"]
            if self.rank is not None and (state["state"] or self._loaded):  # plain SGD has no state
                path, took_ms, step = self._loaded or ("", 0, None)
                steps = _steps_of(state)
                self.rank.restored(path, took_ms, step if steps is None else steps)
        except Exception as error:
            self.broken(error)
        return result

    def _waiting(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        rank = self.rank
        entered = rank is not None and not self._is_compiling() and rank.recorder.enter(ring.COMM)
        try:
            return original(*args, **kwargs)
        finally:
            if entered and rank is not None:
                rank.recorder.leave()

    def _rendezvous(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        if self._synchronised:  # one calls the other
            return original(*args, **kwargs)
        self._synchronised = True
        began = perf_counter_ns()
        if self.rank is None:
            self._become_rank()
        try:
            result = original(*args, **kwargs)
        finally:
            self._synchronised = False
        try:
            if self.rank is not None:
                self.rank.met(perf_counter_ns() - began)
        except Exception as error:
            self.broken(error)
        return result

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        rank = self.rank
        if rank is None or info["generation"] < LEAST_GENERATION:
            return
        recorder = rank.recorder
        if phase == "start":
            recorder.enter(ring.GARBAGE)
        elif recorder.phase == ring.GARBAGE and recorder.inside:
            recorder.leave()


class _Learning:
    """One backward of a model tells which of its gradients comes last: that parameter says when this rank is ready."""

    def __init__(self, module: Any, ready: Callable[[Any], None]) -> None:
        self._ready = ready
        self._order: list[Any] = []
        self._last = MOST_LAST if getattr(module, "find_unused_parameters", False) else 1
        parameters = [p for p in module.parameters() if p.requires_grad and p.is_leaf]
        self._hooks = [p.register_post_accumulate_grad_hook(self._order.append) for p in parameters]

    def learned(self) -> bool:
        """After a backward: whether it was one of this model."""
        if not self._order:
            return False
        for hook in self._hooks:
            hook.remove()
        for parameter in self._order[-self._last :]:
            parameter.register_post_accumulate_grad_hook(self._ready)
        return True


_INSTALL: dict[str, Callable[[Hooks, Any], None]] = {
    "torch": Hooks._torch,
    "torch._dynamo.callback": Hooks._dynamo,
    "torch.distributed.checkpoint": Hooks._checkpoint,
    "torch.distributed.checkpoint.state_dict": Hooks._checkpoint_state,
    "safetensors.torch": Hooks._safetensors,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": Hooks._fsdp,
}
WATCHED = frozenset(_INSTALL)


def _wrap(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Puts a hook before what is there; the hook gets the original first."""

    def hooked(original: Original) -> Original:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return wrapped

    _replace(owner, name, hooked)


def _replace(owner: Any, name: str, hooked: Callable[[Original], Original]) -> None:
    """Puts another function in the place of what is there, made from that."""
    if name not in vars(owner):
        return  # it is inherited, and hooked there
    original = vars(owner)[name]
    original = getattr(original, "__pyrometer__", original)  # the same function under two names is hooked as one
    wrapped = functools.wraps(original)(hooked(original))
    wrapped.__pyrometer__ = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def _whole(loss: Any, tensor_type: type) -> Any:
    """A loss that is no plain tensor, as one; None where only several ranks together know it."""
    placements = getattr(loss, "placements", None)
    if placements is not None:  # a DTensor
        return loss.to_local() if all(placement.is_replicate() for placement in placements) else None
    return loss if isinstance(loss, tensor_type) else None


def _tensors_in(value: Any, tensor_type: type, found: list[Any], depth: int = 0) -> None:
    """The first few tensors near the surface of a batch or of a call's arguments."""
    if isinstance(value, tensor_type):
        found.append(value)
    elif depth < MOST_DEPTH:
        if not isinstance(value, (list, tuple)):  # `list | tuple` would be made anew at every call
            if not isinstance(value, Mapping):
                return
            value = value.values()
        for part in value:
            if len(found) >= MOST_TENSORS:
                return
            if isinstance(part, tensor_type):
                found.append(part)
            else:
                _tensors_in(part, tensor_type, found, depth + 1)


def _path_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The path that something is saved to or loaded from, where it is one."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, str | os.PathLike):
            return os.fspath(value) if isinstance(os.fspath(value), str) else ""
        name = getattr(value, "name", None)
        if isinstance(name, str) and hasattr(value, "write"):
            return name
    return ""


def _step_in(state: Any) -> int | None:
    """The step that a checkpoint says it is of."""
    if isinstance(state, dict):
        for key in _STEP_KEYS:
            if isinstance(state.get(key), int) and not isinstance(state[key], bool):
                return int(state[key])
    return None


def _steps_of(state: dict[str, Any]) -> int | None:
    """How many steps an optimizer had done, by its state; only what is on the host is read."""
    most = None
    for of_parameter in list(state["state"].values())[:4]:
        steps = of_parameter.get("step") if isinstance(of_parameter, dict) else None
        if steps is not None and getattr(getattr(steps, "device", None), "type", "cpu") == "cpu":
            most = max(int(steps), most or 0)
    return most
