"""Rows of a mapped file."""

from __future__ import annotations

import hashlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bestiary.tables import MemmapTable


def make(folder, n=50, columns=4):
    values = np.random.default_rng(1).normal(size=(n, columns)).astype(np.float32)
    np.save(folder / "x.npy", values)
    np.save(folder / "y.npy", np.arange(n) % 3)
    return values, MemmapTable(folder / "x.npy", folder / "y.npy")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_case_d02_small_pickle_and_equal_rows_in_all_start_methods(tmp_path, method):
    written = np.memmap(tmp_path / "x.bin", np.float32, "w+", shape=(1000, 100))
    written[:] = np.arange(100_000).reshape(1000, 100)
    written.flush()
    table = MemmapTable(written)
    table[0]  # opened in the parent, which must not travel
    assert len(pickle.dumps(table)) < 10_000
    loader = DataLoader(table, batch_size=100, num_workers=2, multiprocessing_context=method)
    got = torch.cat([batch["features"] for batch in loader])
    assert torch.equal(got, torch.arange(100_000, dtype=torch.float32).reshape(1000, 100))


def test_case_d02_the_pickle_does_not_grow_with_the_file(tmp_path):
    sizes = []
    for rows in (10, 200_000):
        np.arange(rows, dtype=np.float32).tofile(tmp_path / "x.bin")
        table = MemmapTable(tmp_path / "x.bin")
        assert len(table) == rows
        assert table[rows - 1]["features"].tolist() == [rows - 1]
        sizes.append(len(pickle.dumps(table)))
    assert abs(sizes[1] - sizes[0]) < 16


def read_all(table):
    return [int(table[i]["features"]) for i in range(len(table))]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_case_d04_records_keep_their_place_in_forked_workers_and_threads(tmp_path):
    np.arange(10_000, dtype=np.int64).tofile(tmp_path / "records.bin")
    table = MemmapTable(tmp_path / "records.bin", dtype=np.int64)
    assert int(table[0]["features"]) == 0
    loader = DataLoader(table, batch_size=100, num_workers=4, multiprocessing_context="fork")
    assert [int(one) for batch in loader for one in batch["features"]] == list(range(10_000))
    with ThreadPoolExecutor(4) as threads:
        fresh = MemmapTable(tmp_path / "records.bin", dtype=np.int64)
        for got in threads.map(read_all, [fresh] * 4):
            assert got == list(range(10_000))


def test_case_d04_a_child_opens_its_own_map(tmp_path, monkeypatch):
    _, table = make(tmp_path)
    opened = []
    real = np.memmap
    monkeypatch.setattr(np, "memmap", lambda *args, **options: opened.append(args) or real(*args, **options))
    table[0]
    table[1]
    assert len(opened) == 2  # features and targets, once
    monkeypatch.setattr(os, "getpid", lambda: -1)
    table[0]
    assert len(opened) == 4


def test_rows_are_copies_and_the_file_is_never_written(tmp_path):
    values, table = make(tmp_path)
    before = hashlib.sha256((tmp_path / "x.npy").read_bytes()).hexdigest()
    os.chmod(tmp_path / "x.npy", 0o444)
    table[3]["features"].fill_(9)
    table.__getitems__([3, 4]).columns()["features"].fill_(9)
    assert torch.equal(table[3]["features"], torch.from_numpy(values[3]))
    assert hashlib.sha256((tmp_path / "x.npy").read_bytes()).hexdigest() == before


def test_a_batch_at_once_equals_single_samples(tmp_path):
    values, table = make(tmp_path)
    batch = table.__getitems__([7, 7, 0, 49])
    assert np.array_equal(batch.columns()["features"].numpy(), values[[7, 7, 0, 49]])
    assert [row["label"] for row in batch] == [1, 1, 0, 1] == [table[i]["label"] for i in (7, 7, 0, 49)]


@pytest.mark.parametrize("stored", ["<f8", ">f4", "<i2", "|u1", "|b1", ">i8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_plain_type_comes_out_as_float32(tmp_path, stored, order):
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(stored)
    np.save(tmp_path / "x.npy", np.asarray(values, order=order))
    table = MemmapTable(tmp_path / "x.npy")
    assert table[1]["features"].dtype == torch.float32
    assert [table[i]["features"].tolist() for i in range(3)] == [[0, 1], [1, 0], [1, 1]]


def test_case_d01_types_of_targets(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 1)))
    np.save(tmp_path / "y.npy", np.array([0.25, 0.5]))
    np.array([1, 2], dtype=np.int32).tofile(tmp_path / "y.bin")
    batch = next(iter(DataLoader(MemmapTable(tmp_path / "x.npy", tmp_path / "y.npy"), batch_size=2)))
    assert batch["target"].dtype == torch.float32
    whole = MemmapTable(tmp_path / "x.npy", tmp_path / "y.bin", target_file_dtype=np.int32, feature_dtype=torch.float64)
    assert whole[1]["label"] == 2
    assert whole[1]["features"].dtype == torch.float64


def test_a_slice_of_a_map_keeps_its_place(tmp_path):
    values, _ = make(tmp_path)
    part = np.load(tmp_path / "x.npy", mmap_mode="r")[10:20]
    table = MemmapTable(part)
    assert len(table) == 10
    assert torch.equal(table[0]["features"], torch.from_numpy(values[10]))
    with pytest.raises(ValueError, match="gaps"):
        MemmapTable(np.load(tmp_path / "x.npy", mmap_mode="r")[:, :2])


def test_offset_and_shape_of_a_bare_file(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"HEAD" + np.arange(6, dtype=np.float32).tobytes())
    table = MemmapTable(tmp_path / "x.bin", shape=(-1, 3), offset=4)
    assert [table[i]["features"].tolist() for i in range(2)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("shape", [(-1, 4), (3, 3), (1, 3)])
def test_a_file_of_another_size_is_refused(tmp_path, shape):
    np.arange(6, dtype=np.float32).tofile(tmp_path / "x.bin")
    with pytest.raises(ValueError, match="24 bytes"):
        MemmapTable(tmp_path / "x.bin", shape=shape)


def test_a_file_cut_short_is_refused_and_does_not_kill(tmp_path):
    make(tmp_path)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="cut short"):
        MemmapTable(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(whole)
    table = MemmapTable(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="cut short"):
        table[0]


def test_different_numbers_of_rows_name_both_files(tmp_path):
    make(tmp_path)
    np.save(tmp_path / "z.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"(?s)x\.npy has 50 rows.*z\.npy has 3"):
        MemmapTable(tmp_path / "x.npy", tmp_path / "z.npy")


class Payload:
    def __reduce__(self):
        return (os.mkdir, ("opened",))


def test_pickles_in_a_npy_file_are_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="plain numbers"):
        MemmapTable("x.npy")
    assert not os.path.exists("opened")


def test_other_bad_files(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"no numbers")
    with pytest.raises(ValueError, match=r"x\.npy"):
        MemmapTable(tmp_path / "x.npy")
    np.save(tmp_path / "one.npy", np.float32(3))
    with pytest.raises(ValueError, match="no rows"):
        MemmapTable(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError):
        MemmapTable(tmp_path / "gone.npy")


def test_empty_files_have_no_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.empty((0, 3), dtype=np.float32))
    (tmp_path / "x.bin").write_bytes(b"")
    for table in (MemmapTable(tmp_path / "x.npy"), MemmapTable(tmp_path / "x.bin", shape=(-1, 2))):
        assert len(table) == 0
        with pytest.raises(IndexError):
            table[0]


def test_relative_paths_survive_a_change_of_folder(tmp_path, monkeypatch):
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    table = MemmapTable("x.npy")
    monkeypatch.chdir("/")
    assert len(table[0]["features"]) == 4
    assert table.locate(-1).endswith("x.npy, row 49")
