"""Chance keyed by integers: the global generators, and those a dataset keeps, are seeded for each sample.

A transform, torchvision's or the user's own, draws from the ordinary generators of torch, numpy and random. Seeding
these before each sample, with a hash of (seed, epoch, index, occurrence), makes a draw a function of these four
numbers: the same for any number of workers and after any resume, another one in the next epoch.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

LEAVES = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor, np.ndarray, np.generic, ModuleType)
MOST_OBJECTS = 20_000  # a walk through a dataset's settings; its data is not of interest
QUICK = 200  # objects; so short a walk is made again for every batch
LONGEST_LIST = 256  # of a longer list only the beginning is looked at: it holds data


def seed_all(key: int) -> None:
    """Seed the global generators of torch (CPU), numpy and random with a 64-bit key; numpy takes its lower 32 bits."""
    torch.default_generator.manual_seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    random.seed(key)


def own_bits() -> Any:
    """Put a bit generator that can be seeded below numpy's global generator; return the one that was there."""
    before = mtrand.get_bit_generator()
    mtrand.set_bit_generator(_spare_bits())
    return before


@cache
def _spare_bits() -> Any:
    """Return a bit generator to seed in the caller's stead; one for the process, since making one costs 50 us."""
    return np.random.MT19937(0)


class _Second:
    """numpy's second normal: it draws two and keeps one for the next call, beside its bits, and forgets it when these are swapped."""

    mark: Any = None  # of the caller's bits when they were seen without one; reading all of the state costs 60 us

    def kept(self) -> dict[str, Any] | None:
        """Return the state of numpy's global generator where it keeps a normal, else None."""
        mark = self._mark(mtrand.get_bit_generator())
        if mark is not None and mark == self.mark:
            return None
        state: Any = np.random.get_state(legacy=False)
        self.mark = None if state["has_gauss"] else mark
        return state if state["has_gauss"] else None

    @staticmethod
    def _mark(bits: Any) -> tuple[int, int, int] | None:
        """Return what changes with every draw: the first word of the Mersenne Twister's state, and its place in it."""
        if type(bits) is not np.random.MT19937:
            return None
        words = (ctypes.c_uint32 * 625).from_address(bits.ctypes.state_address)
        return id(bits), words[0], words[624]


_second = _Second()


class OwnGenerators:
    """The generators that a dataset or its transforms keep as attributes: forked workers would all repeat them.

    Found by a walk through attributes, containers and partials, the nearest first; reseeded with the same key as the
    global ones.

    Attributes:
        found: where each one is, such as "transform.rng", and itself.
        quick: whether the walk was so short that it can be made for every batch.
        stopped: whether it was given up, so that one may have been missed.
    """

    def __init__(self, *roots: object) -> None:
        self.found: list[tuple[str, Any]] = []
        seen = {id(random.__dict__.get("_inst")), id(torch.default_generator)}  # the global ones are seeded anyway
        todo = deque[tuple[str, object]](("", root) for root in roots)
        while todo and len(seen) < MOST_OBJECTS:
            path, thing = todo.popleft()
            if isinstance(thing, LEAVES) or id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, GENERATORS):
                if not isinstance(thing, random.SystemRandom):
                    self.found.append((path, thing))
                continue
            todo.extend((f"{path}.{name}" if path else name, part) for name, part in _parts(thing))
        self.quick, self.stopped = len(seen) < QUICK, bool(todo)

    def seed(self, key: int) -> None:
        """Reseed each generator with a 64-bit key."""
        for _, generator in self.found:
            _seed_one(generator, key)

    def names(self) -> list[str]:
        """Return where each one was found, such as "transform.rng"."""
        return [name for name, _ in self.found]


@contextmanager
def borrowed_generators(own: OwnGenerators) -> Iterator[None]:
    """Lend the global generators and a dataset's own for seeding, and give them back as they were.

    The global ones belong to all threads: one batch at a time is made with them. A loader inside a dataset borrows from
    the loader around it. numpy's costs least by swapping the bit generator below it: 2 us, where its state would cost 75.
    """
    with _lending.lock:
        torch_state, python_state = torch.default_generator.get_state(), random.getstate()
        restores = [_restorer(generator) for _, generator in own.found]
        if _lending.depth:
            restores.append(_restorer(np.random.Generator(mtrand.get_bit_generator())))
        second = _second.kept()
        bits = own_bits()
        _lending.depth += 1
        try:
            yield
        finally:
            _lending.depth -= 1
            torch.default_generator.set_state(torch_state)
            random.setstate(python_state)
            mtrand.set_bit_generator(bits)
            for restore in restores:
                restore()
            if second is not None:
                np.random.set_state(second)


class _Lending:
    """Who has the global generators now: how many fetches inside one another, and the lock between threads."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.RLock(), 0


_lending = _Lending()


class _Kept:
    """A worker's generators are its own: nothing to give back, unless a loader inside the dataset borrows them."""

    def __enter__(self) -> None:
        _lending.depth += 1

    def __exit__(self, *error: object) -> None:
        _lending.depth -= 1


def worker_generators(own: OwnGenerators) -> AbstractContextManager[None]:
    """Have a worker's generators for seeding; a loader inside a dataset there borrows from the loader around it."""
    return borrowed_generators(own) if _lending.depth else _Kept()


def in_worker() -> None:
    """Prepare a fresh worker: it seeds without giving back, and holds no lock that another thread had at the fork."""
    _lending.lock, _lending.depth = threading.RLock(), 0
    own_bits()


def _seed_one(generator: Any, key: int) -> None:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(key).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(key & 0xFFFFFFFF)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(key)
    else:
        generator.seed(key)


def _restorer(generator: Any) -> Callable[[], None]:
    if isinstance(generator, np.random.Generator):
        bits, state = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", state)
    if isinstance(generator, (np.random.RandomState, torch.Generator)):
        return partial(generator.set_state, generator.get_state())  # type: ignore[arg-type, return-value]
    python_state = generator.getstate()
    return lambda: generator.setstate(python_state)


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    """Yield what a thing holds, by name: attributes, its class's too, items of containers, what a partial was made of."""
    if isinstance(thing, Mapping):
        yield from ((str(name), part) for name, part in itertools.islice(thing.items(), LONGEST_LIST))
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        yield from ((str(place), part) for place, part in enumerate(itertools.islice(thing, LONGEST_LIST)))
    if isinstance(thing, partial):
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif isinstance(thing, MethodType):
        yield "__self__", thing.__self__
    elif isinstance(thing, FunctionType):
        cells = [cell for cell in thing.__closure__ or () if cell != _EMPTY]
        yield from zip(thing.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=False)
    yield from list(getattr(thing, "__dict__", {}).items())
    for kind in () if isinstance(thing, FunctionType) else type(thing).__mro__:
        if kind.__module__ in ("builtins", "abc", "typing", "collections"):
            continue
        for name, part in list(kind.__dict__.items()):
            if isinstance(part, MemberDescriptorType) and hasattr(thing, name):  # a slot
                yield name, getattr(thing, name)
            elif isinstance(part, (*GENERATORS, list, tuple, dict)):
                yield name, part


_EMPTY = CellType()
GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
