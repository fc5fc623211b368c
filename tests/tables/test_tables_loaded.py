"""Tables through the loader: columns at once, the same batches for any workers and start method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bestiary.loading import Collate, Columns, Loader
from bestiary.tables import MemmapTable, TabularDataset, TypedTable


@pytest.fixture(params=["arrays", "mapped", "typed"])
def table(request, tmp_path):
    values = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", np.arange(10) % 3)
    rows = "".join(f"{a},{b},{'uv'[i % 2]},{i % 3}\n" for i, (a, b) in enumerate(values.tolist()))
    (tmp_path / "t.csv").write_text("a,b,c,y\n" + rows)
    return {
        "arrays": lambda: TabularDataset(values, np.arange(10) % 3),
        "mapped": lambda: MemmapTable(tmp_path / "x.npy", tmp_path / "y.npy"),
        "typed": lambda: TypedTable(tmp_path / "t.csv", label="y"),
    }[request.param]()


def test_columns_make_the_batch_that_samples_make(table):
    indices = [3, 0, 3, 9]
    rows = table.__getitems__(indices)
    assert isinstance(rows, Columns)
    quick, slow = Collate()(rows), Collate()([table[index] for index in indices])
    assert quick.keys() == slow.keys()
    for name in quick:
        assert torch.equal(quick[name], slow[name]), name
        assert quick[name].dtype == slow[name].dtype, name


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_case_f22_the_loader_gives_the_same_under_every_start_method(table, method):
    alone = list(Loader(table, batch_size=4, shuffle=True, seed=3))
    shared = list(Loader(table, batch_size=4, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method))
    assert len(alone) == len(shared) == 3
    for one, two in zip(alone, shared, strict=True):
        for name in one:
            assert torch.equal(one[name], two[name])
    assert sorted(int(label) for batch in alone for label in batch["label"]) == sorted(i % 3 for i in range(10))


def test_a_batch_may_be_written_into(table):
    first = table[0]["features"].clone()
    for batch in Loader(table, batch_size=10):
        batch["features"].zero_()
    assert torch.equal(table[0]["features"], first)


def test_a_target_is_float32_through_the_loader():
    (batch,) = Loader(TabularDataset([[1.0], [2.0]], [0.5, 1.5]), batch_size=2)
    assert batch["target"].dtype == torch.float32
    slow = Collate()([TabularDataset([[1.0], [2.0]], [0.5, 1.5])[index] for index in range(2)])
    assert torch.equal(batch["target"], slow["target"])
    assert slow["target"].dtype == torch.float32
