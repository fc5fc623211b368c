"""Token rows in one flat array, in memory and mapped."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from bestiary.loading import Collate
from bestiary.text import RaggedTokens, TokenWindows, write_tokens

ROWS = [[5, 6, 2], [], [7, 2], [9]]


def lists(dataset: Any) -> list[list[int]]:
    return [dataset[index]["tokens"].tolist() for index in range(len(dataset))]


@pytest.fixture(params=["memory", "mapped"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> RaggedTokens:
    if request.param == "memory":
        return RaggedTokens.from_rows(ROWS, [0, 1, 2, 3])
    return RaggedTokens.open(write_tokens(tmp_path / "tokens.npy", iter(ROWS), labels=[0, 1, 2, 3]))


def test_rows_come_back(dataset: RaggedTokens) -> None:
    assert lists(dataset) == ROWS
    assert [dataset[index]["label"] for index in range(4)] == [0, 1, 2, 3]
    assert dataset[0]["tokens"].dtype == torch.int64
    assert dataset.lengths.tolist() == [3, 0, 2, 1]
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [0, 1, 2, 3]
    assert dataset.has_labels
    assert dataset.draws is False
    assert dataset[-1]["tokens"].tolist() == [9]
    assert dataset.locate(2).endswith("row 2")
    for index in (4, -5):
        with pytest.raises(IndexError, match="4 samples"):
            dataset[index]
        with pytest.raises(IndexError, match="4 samples"):
            dataset.__getitems__([0, index])


def test_many_rows_are_the_single_rows(dataset: RaggedTokens) -> None:
    wanted = [2, 0, 1, 2, -1]
    rows = dataset.__getitems__(wanted)
    assert len(rows) == 5
    assert [row["tokens"].tolist() for row in rows] == [dataset[index]["tokens"].tolist() for index in wanted]
    assert [row["label"] for row in rows] == [2, 0, 1, 2, 3]
    assert [row["tokens"].tolist() for row in rows[1:3]] == [[5, 6, 2], []]
    with pytest.raises(IndexError):
        rows[5]
    assert len(dataset.__getitems__([])) == 0


def test_case_c01_padding_may_share_an_id_with_the_end(dataset: RaggedTokens) -> None:
    batch = Collate(pad={"tokens": 2})(dataset.__getitems__([0, 2]))
    assert batch["tokens"].tolist() == [[5, 6, 2], [7, 2, 2]]
    assert batch["tokens_mask"].tolist() == [[True, True, True], [True, True, False]]
    labels = batch["tokens"].masked_fill(~batch["tokens_mask"], -100)
    assert labels.tolist() == [[5, 6, 2], [7, 2, -100]]
    assert batch["label"].tolist() == [0, 2]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=12),
    dtype=st.sampled_from([np.int32, np.int64, np.uint32]),
    data=st.data(),
)
def test_batches_equal_pad_sequence(rows: list[list[int]], dtype: Any, data: st.DataObject) -> None:
    dataset = RaggedTokens.from_rows([np.array(row, dtype) for row in rows])
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    batch = Collate(pad={"tokens": 0})(dataset.__getitems__(wanted))
    picked = [torch.tensor(rows[index], dtype=torch.int64) for index in wanted]
    assert torch.equal(batch["tokens"], pad_sequence(picked, batch_first=True))
    assert batch["tokens"].dtype == torch.int64
    assert batch["tokens_length"].tolist() == [len(row) for row in picked]
    again = Collate(pad={"tokens": 0})([dataset[index] for index in wanted])
    assert all(torch.equal(again[name], batch[name]) for name in again)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 255), max_size=70), max_size=6),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]),
    labelled=st.booleans(),
)
def test_files_give_back_what_was_written(tmp_path: Path, rows: list[list[int]], dtype: Any, labelled: bool) -> None:
    labels = list(range(len(rows))) if labelled else None
    path = write_tokens(tmp_path / "tokens.npy", iter(rows), labels=labels, dtype=dtype)
    dataset = RaggedTokens.open(path)
    assert lists(dataset) == rows
    assert dataset.has_labels == labelled
    flat = np.load(path, mmap_mode="r")
    assert flat.dtype == dtype
    assert flat.tolist() == [token for row in rows for token in row]
    with path.open("rb") as file:  # the layout that the docstring promises, read by numpy alone
        arrays = [np.load(file) for _ in range(2 + labelled)]
        assert file.read() == b""
    assert arrays[1].tolist() == np.cumsum([0, *map(len, rows)]).tolist()


def test_writer_takes_arrays_tensors_and_late_labels(tmp_path: Path) -> None:
    labels: list[int] = []

    def rows() -> Any:
        for number, row in enumerate([[1, 2], np.array([3], np.uint8), torch.tensor([4, 5]), ()]):
            labels.append(number)
            yield row

    dataset = RaggedTokens.open(write_tokens(tmp_path / "tokens.npy", rows(), labels=labels))
    assert lists(dataset) == [[1, 2], [3], [4, 5], []]
    assert dataset[3]["label"] == 3


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([[1], [70_000]], {"dtype": np.uint16}, ValueError, "row 1 holds the id 70000, which does not fit into uint16"),
        ([[1], [-1]], {"dtype": np.uint16}, ValueError, "row 1 holds the id -1"),
        ([[1], [2**40]], {}, ValueError, "row 1 holds the id 1099511627776"),
        ([[1], [0.5]], {}, TypeError, "row 1 should be integers"),
        ([[1], "word"], {}, TypeError, "row 1 should be integers"),
        ([[[1]]], {}, TypeError, "row 0 should be integers"),
        ([[1]], {"labels": [1, 2]}, ValueError, "1 rows, but 2 labels"),
        ([[1]], {"dtype": np.float32}, TypeError, "float32"),
    ],
)
def test_writing_what_does_not_fit_leaves_the_old_file(
    tmp_path: Path, rows: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [[42]])
    with pytest.raises(error, match=message):
        write_tokens(path, rows, **options)
    assert lists(RaggedTokens.open(path)) == [[42]]
    assert os.listdir(tmp_path) == ["tokens.npy"]


def test_an_error_in_the_rows_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Any:
        yield [1]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_tokens(tmp_path / "tokens.npy", rows())
    assert os.listdir(tmp_path) == []


def test_case_c04_empty_rows(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [[1, 2], [], [3]], labels=[4, 5, 6])
    for make in (
        lambda empty: RaggedTokens.from_rows([[1, 2], [], [3]], [4, 5, 6], empty=empty),
        lambda empty: RaggedTokens.open(path, empty=empty),
    ):
        assert make("keep").lengths.tolist() == [2, 0, 1]
        dropped = make("drop")
        assert lists(dropped) == [[1, 2], [3]]
        assert dropped.lengths.tolist() == [2, 1]
        assert dropped.labels.tolist() == [4, 6]
        assert [row["label"] for row in dropped.__getitems__([1, 0])] == [6, 4]
        assert dropped.locate(1).endswith("row 2")
        assert lists(pickle.loads(pickle.dumps(dropped))) == [[1, 2], [3]]
        with pytest.raises(ValueError, match="row 1"):
            make("error")
        with pytest.raises(ValueError, match="empty should be"):
            make("skip")


@pytest.mark.parametrize(
    ("values", "offsets", "labels", "error"),
    [
        ([1, 2], [0, 1], None, ValueError),
        ([1, 2], [1, 2], None, ValueError),
        ([1, 2], [0, 2, 1, 2], None, ValueError),
        ([1, 2], [], None, ValueError),
        ([1, 2], [0, 2], [1, 2], ValueError),
        ([1.0, 2.0], [0, 2], None, TypeError),
        ([1, 2], [0, 2], [0.5], TypeError),
        ([[1, 2]], [0, 1], None, TypeError),
    ],
)
def test_arrays_that_do_not_fit(values: Any, offsets: Any, labels: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        RaggedTokens(values, offsets, labels)


@pytest.mark.parametrize("cut", [0, 50, 130, 150, 300, 460])
def test_cut_and_foreign_files_are_refused(tmp_path: Path, cut: int) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [[1, 2, 3], [4]], labels=[0, 1])
    data = path.read_bytes()
    assert len(data) > 460
    path.write_bytes(data[:cut])
    with pytest.raises(ValueError, match=r"tokens\.npy"):
        RaggedTokens.open(path)
    path.write_bytes(b"<html>" * 30)
    with pytest.raises(ValueError, match="no token file"):
        RaggedTokens.open(path)
    with pytest.raises(OSError, match=r"missing\.npy"):
        RaggedTokens.open(tmp_path / "missing.npy")


def test_plain_npy_and_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.arange(3))
    with pytest.raises(ValueError, match="TokenWindows"):
        RaggedTokens.open(tmp_path / "plain.npy")
    for array in (np.zeros((2, 2), int), np.zeros(2), np.array(["a", None], object)):
        np.save(tmp_path / "odd.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=r"odd\.npy"):
            RaggedTokens.open(tmp_path / "odd.npy")


def test_a_file_cut_after_opening_does_not_kill_the_process(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [[1] * 5000])
    dataset = pickle.loads(pickle.dumps(RaggedTokens.open(path)))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="cut"):
        dataset[0]


def test_writing_into_samples_changes_nothing_else(dataset: RaggedTokens, tmp_path: Path) -> None:
    rows = dataset.__getitems__([0, 2])
    dataset[0]["tokens"].zero_()
    rows[0]["tokens"].zero_()
    batch = Collate(pad={"tokens": 0})(rows)
    batch["tokens"].zero_()
    batch["label"].zero_()
    assert lists(dataset) == ROWS
    assert dataset.labels is not None
    dataset.labels[:] = 7
    assert [dataset[index]["label"] for index in range(4)] == [0, 1, 2, 3]


def test_transform_is_applied_everywhere() -> None:
    def longer(sample: Any) -> Any:
        return sample | {"tokens": torch.cat([torch.tensor([1]), sample["tokens"]])}

    dataset = RaggedTokens.from_rows(ROWS, transform=longer)
    assert dataset.draws is True
    assert lists(dataset)[:2] == [[1, 5, 6, 2], [1]]
    assert [row["tokens"].tolist() for row in dataset.__getitems__([1, 3])] == [[1], [1, 9]]


def test_case_d02_pickle_holds_the_name_only(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [np.arange(1000)] * 100)
    dataset = RaggedTokens.open(path)
    assert dataset[0]["tokens"].shape == (1000,)
    assert len(pickle.dumps(dataset)) < 10_000
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[99]["tokens"], torch.arange(1000))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_case_f22_the_same_batches_by_every_start_method(tmp_path: Path, method: str) -> None:
    dataset = RaggedTokens.open(write_tokens(tmp_path / "tokens.npy", [[n] * (n % 5) for n in range(40)]))
    collate = Collate(pad={"tokens": -1})
    wanted = [collate(dataset.__getitems__(range(start, start + 8))) for start in range(0, 40, 8)]
    batches = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=collate)
    for batch, right in zip(batches, wanted, strict=True):
        assert all(torch.equal(batch[name], right[name]) for name in right)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # on a machine of few cores
def test_case_d04_each_process_maps_for_itself(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.npy", ([n] * 3 for n in range(4000)))
    dataset = RaggedTokens.open(path)
    assert dataset[0]["tokens"].tolist() == [0, 0, 0]
    batches = DataLoader(dataset, batch_size=100, num_workers=4, multiprocessing_context="fork", collate_fn=list)
    assert [row["tokens"][0].item() for batch in batches for row in batch] == list(range(4000))
    wrong: list[int] = []

    def read(first: int) -> None:
        wrong.extend(n for n in range(first, 4000, 4) if dataset[n]["tokens"].tolist() != [n] * 3)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_case_d06_readers_do_not_grow(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("this system does not tell private memory")
    path = write_tokens(tmp_path / "tokens.npy", (np.full(60, n) for n in range(50_000)))
    code = """
import sys
from bestiary.text import RaggedTokens
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
dataset = RaggedTokens.open(sys.argv[1])
def walk():
    for start in range(0, 50_000, 100):
        assert len(dataset.__getitems__(range(start, start + 100)).columns()["tokens"].values) == 6000
walk()
before = private()
for _ in range(3): walk()
print(private() - before)
"""
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 4096  # kB, of a file of 12 MB


def test_progress_shows_on_stderr_after_two_seconds(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    pytest.importorskip("tqdm")
    write_tokens(tmp_path / "quick.npy", [[1]] * 100)
    assert capfd.readouterr() == ("", "")
    ticks = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    write_tokens(tmp_path / "slow.npy", [[1]] * 100)
    out, err = capfd.readouterr()
    assert out == ""
    assert "100/100" in err


def test_the_file_of_rows_serves_windows_too(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.npy", [[0, 1, 2], [3], [4, 5]], dtype=np.uint16)
    assert TokenWindows(path, 5)[0]["targets"].tolist() == [1, 2, 3, 4, 5]
