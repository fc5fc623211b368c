"""Chance keyed by integers: the global generators, and those a dataset keeps, are seeded for each sample.

A transform, torchvision's or the user's own, draws from the ordinary generators of torch, numpy and random. Seeding
these before each sample, with a hash of (seed, epoch, index, occurrence), makes a draw a function of these four
numbers: the same for any number of workers and after any resume, another one in the next epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

LEAVES = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor, np.ndarray, np.generic)
MOST_OBJECTS = 2_000  # a walk through a dataset's settings; its data is not of interest
LONGEST_LIST = 256  # a longer list holds data


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


class OwnGenerators:
    """The generators that a dataset or its transforms keep as attributes: forked workers would all repeat them.

    Found by a walk through attributes, containers and partials; reseeded with the same key as the global ones.
    """

    def __init__(self, *roots: object) -> None:
        self.found = list(_find(roots))

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

    numpy's costs least by swapping the bit generator below it: 2 us, where its state would cost 75.
    """
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    restores = [_restorer(generator) for _, generator in own.found]
    bits = own_bits()
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        mtrand.set_bit_generator(bits)
        for restore in restores:
            restore()


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


def _find(roots: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (path, generator) for every generator that can be reached from the roots, each once."""
    todo: list[tuple[str, object]] = [("", root) for root in reversed(roots)]
    seen = {id(random.__dict__.get("_inst")), id(torch.default_generator)}  # the global ones are seeded anyway
    while todo and len(seen) < MOST_OBJECTS:
        path, thing = todo.pop()
        if isinstance(thing, LEAVES) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)):
            if not isinstance(thing, random.SystemRandom):
                yield path, thing
            continue
        todo += [(f"{path}.{name}" if path else name, part) for name, part in _parts(thing)]


def _parts(thing: object) -> list[tuple[str, object]]:
    """Return what a thing holds, by name: attributes, items of short containers, a partial's or method's owner."""
    if isinstance(thing, dict):
        return [(str(name), part) for name, part in thing.items()] if len(thing) <= LONGEST_LIST else []
    if isinstance(thing, (list, tuple, set, frozenset)):
        return [(str(place), part) for place, part in enumerate(thing)] if len(thing) <= LONGEST_LIST else []
    parts: list[tuple[str, object]] = []
    for name in ("func", "args", "keywords", "__self__"):
        if not isinstance(thing, type) and hasattr(type(thing), name):
            parts.append((name, getattr(thing, name)))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        parts += [(name, getattr(thing, name)) for name in names if name != "__dict__" and hasattr(thing, name)]
    return parts + list(getattr(thing, "__dict__", {}).items())
