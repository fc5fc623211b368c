"""PackedNames against a list of the same strings, and its memory in forked workers."""

import copy
import json
import multiprocessing
import os
import pickle
import tracemalloc

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.files import PackedNames

ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=12)
LISTS = st.lists(ANY_TEXT, max_size=20)


@given(LISTS)
def test_is_the_sequence_it_was_made_from(names):
    packed = PackedNames(iter(names))
    assert list(packed) == names
    assert [packed[i] for i in range(-len(names), len(names))] == names * 2
    assert packed == names and packed == PackedNames(names) and packed != [*names, "more"]
    for outside in (len(names), -len(names) - 1):
        with pytest.raises(IndexError):
            packed[outside]


@given(LISTS, st.slices(20))
def test_slices_like_a_list(names, cut):
    part = PackedNames(names)[cut]
    assert isinstance(part, PackedNames)
    assert list(part) == names[cut]
    assert list(pickle.loads(pickle.dumps(part))) == names[cut]


@given(LISTS.filter(bool), st.data())
def test_takes_like_numpy(names, data):
    at = data.draw(st.lists(st.integers(-len(names), len(names) - 1), max_size=30))
    packed = PackedNames(names)
    assert list(packed.take(np.array(at, np.int64))) == [names[i] for i in at]
    assert list(packed.take(at)) == [names[i] for i in at]


@given(LISTS)
def test_pickles_and_copies(names):
    packed = PackedNames(names)
    for other in (pickle.loads(pickle.dumps(packed)), copy.copy(packed), copy.deepcopy(packed)):
        assert isinstance(other, PackedNames)
        assert list(other) == names


@given(st.lists(st.binary(min_size=1, max_size=8), max_size=10))
def test_file_names_of_any_bytes_survive_json(raw):
    names = [os.fsdecode(one) for one in raw]
    read = PackedNames(json.loads(json.dumps(list(PackedNames(names)))))
    assert [os.fsencode(name) for name in read] == raw


@given(st.lists(st.text(max_size=9), max_size=9))
def test_counts_its_bytes(names):
    assert PackedNames(names).nbytes == sum(len(name.encode()) for name in names) + 8 * (len(names) + 1)


def test_a_slice_pickles_only_itself_and_shares_the_bytes():
    packed = PackedNames("x" * 60 for _ in range(10_000))
    assert packed[:5].nbytes == 5 * 60 + 6 * 8
    assert len(pickle.dumps(packed[5000:5005])) < 2000


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="cat.png"):
        PackedNames("cat.png")
    with pytest.raises(TypeError, match=r"name 1 .* 7"):
        PackedNames(["a", 7])
    packed = PackedNames(["a", "b"])
    with pytest.raises(IndexError, match="flatnonzero"):
        packed.take(np.array([True, False]))
    with pytest.raises(IndexError):
        packed.take([2])
    with pytest.raises(TypeError):
        packed[0] = "c"
    with pytest.raises(TypeError):
        hash(packed)


def test_building_holds_no_list_of_the_names():
    tracemalloc.start()
    packed = PackedNames(_paths(50_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.4 * packed.nbytes  # a list of these strings takes 1.7 times as much


def test_an_empty_one():
    empty = PackedNames([])
    assert len(empty) == 0 and list(empty) == [] and list(empty.take([])) == [] and "a" not in empty
    assert list(pickle.loads(pickle.dumps(empty))) == []


def _paths(count):
    return (f"class_{i % 1000:04d}/{'x' * 38}{i:07d}.jpg" for i in range(count))


def _read_all(packed, pipe):
    process = psutil.Process()
    before = process.memory_full_info().uss
    total = sum(len(packed[i]) for i in range(len(packed)))
    pipe.send((total, process.memory_full_info().uss - before))


def test_case_d06_forked_workers_own_no_copy_of_the_index():
    assert {len(path) for path in _paths(1001)} == {60}
    tracemalloc.start()
    packed = PackedNames(_paths(1_000_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 80e6 and packed.nbytes < 80e6
    assert len(pickle.dumps(packed)) < packed.nbytes + 1000
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(4)]
    workers = [context.Process(target=_read_all, args=(packed, send)) for _, send in pipes]
    for worker in workers:
        worker.start()
    for receive, _ in pipes:
        total, grown = receive.recv()
        assert total == 60_000_000
        assert grown < 20e6
    for worker in workers:
        worker.join()
