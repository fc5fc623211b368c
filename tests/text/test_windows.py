"""Windows over a flat file of tokens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bestiary.loading import Collate
from bestiary.text import TokenWindows


def pairs(windows: TokenWindows) -> list[tuple[list[int], list[int]]]:
    samples = [windows[index] for index in range(len(windows))]
    return [(sample["tokens"].tolist(), sample["targets"].tolist()) for sample in samples]


def test_case_c08_windows() -> None:
    windows = TokenWindows(np.arange(8), 4)
    assert len(windows) == 4
    assert pairs(windows)[-1] == ([3, 4, 5, 6], [4, 5, 6, 7])
    assert len(TokenWindows(np.arange(5), 4)) == 1
    with pytest.raises(ValueError, match="4 tokens.*block=4 needs 5"):
        TokenWindows(np.arange(4), 4)
    started = TokenWindows(np.arange(8), 4, start_token=99)
    assert pairs(started)[0] == ([99, 0, 1, 2], [0, 1, 2, 3])
    assert pairs(started)[-1] == ([99, 4, 5, 6], [4, 5, 6, 7])
    assert len(TokenWindows(np.arange(4), 4, start_token=99)) == 1
    with pytest.raises(ValueError, match="3 tokens.*block=4 needs 4"):
        TokenWindows(np.arange(3), 4, start_token=99)


@given(total=st.integers(2, 60), block=st.integers(1, 20), stride=st.integers(1, 25), start=st.sampled_from([None, 7]))
def test_windows_are_slices(total: int, block: int, stride: int, start: int | None) -> None:
    tokens = np.random.default_rng(0).permutation(total)
    need = block + 1 if start is None else block
    if total < need:
        with pytest.raises(ValueError, match=str(total)):
            TokenWindows(tokens, block, stride=stride, start_token=start)
        return
    windows = TokenWindows(tokens, block, stride=stride, start_token=start)
    rows = [tokens[at : at + need].tolist() for at in range(0, total - need + 1, stride)]
    rows = rows if start is None else [[start, *row] for row in rows]
    assert len(windows) == len(rows)
    assert pairs(windows) == [(row[:-1], row[1:]) for row in rows]
    assert windows.left_over == total - ((len(rows) - 1) * stride + need)
    with pytest.raises(IndexError):
        windows[len(rows)]


def test_windows_of_block_stride_share_no_target() -> None:
    windows = TokenWindows(np.arange(13), 4, stride=4)
    assert [target for _, targets in pairs(windows) for target in targets] == list(range(1, 13))


@pytest.mark.parametrize("form", ["npy", "bare", "memmap", "slice", "tensor", "list"])
def test_every_form_of_tokens(tmp_path: Path, form: str) -> None:
    array = np.arange(100, dtype=np.uint16)
    np.save(tmp_path / "a.npy", array)
    array.tofile(tmp_path / "a.bin")
    mapped = np.memmap(tmp_path / "a.bin", dtype=np.uint16, mode="r")
    forms: dict[str, Any] = {
        "npy": lambda: TokenWindows(tmp_path / "a.npy", 10),
        "bare": lambda: TokenWindows(str(tmp_path / "a.bin"), 10, dtype=np.uint16),
        "memmap": lambda: TokenWindows(mapped, 10),
        "slice": lambda: TokenWindows(np.memmap(tmp_path / "a.bin", dtype=np.uint16, mode="r")[:], 10),
        "tensor": lambda: TokenWindows(torch.arange(100), 10),
        "list": lambda: TokenWindows(list(range(100)), 10),
    }
    windows = forms[form]()
    assert len(windows) == 90
    again = pickle.loads(pickle.dumps(windows))
    for each in (windows, again):
        assert each[89]["targets"].tolist() == list(range(90, 100))
        assert each[5]["tokens"].dtype == torch.int64


def test_a_slice_of_a_map_begins_where_it_begins(tmp_path: Path) -> None:
    np.arange(50_000, dtype=np.int32).tofile(tmp_path / "a.bin")
    mapped = np.memmap(tmp_path / "a.bin", dtype=np.int32, mode="r", offset=4 * 1234)
    windows = pickle.loads(pickle.dumps(TokenWindows(mapped[1000:2000], 10)))
    assert windows[0]["tokens"].tolist() == list(range(2234, 2244))
    assert len(windows) == 990


def test_case_d02_a_map_pickles_as_its_place(tmp_path: Path) -> None:
    np.arange(100_000, dtype=np.int32).tofile(tmp_path / "a.bin")
    windows = TokenWindows(np.memmap(tmp_path / "a.bin", dtype=np.int32, mode="r"), 64)
    assert windows[3]["tokens"][0] == 3
    assert len(pickle.dumps(windows)) < 10_000


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_case_d04_workers_map_for_themselves(tmp_path: Path, method: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(2000, dtype=np.int32))
    windows = TokenWindows(tmp_path / "a.npy", 8, stride=8)
    assert windows[0]["tokens"][0] == 0
    batches = DataLoader(windows, batch_size=32, num_workers=2, multiprocessing_context=method, collate_fn=Collate())
    tokens = torch.cat([batch["tokens"] for batch in batches])
    assert tokens.flatten().tolist() == list(range(len(windows) * 8))


def test_windows_are_copies(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(20))
    before = (tmp_path / "a.npy").read_bytes()
    windows = TokenWindows(tmp_path / "a.npy", 4)
    sample = windows[0]
    sample["tokens"].fill_(-1)
    assert sample["targets"].tolist() == [1, 2, 3, 4]
    batch = Collate()(windows.__getitems__([0, 1]))
    batch["tokens"].fill_(-1)
    assert batch["targets"].tolist() == [[1, 2, 3, 4], [2, 3, 4, 5]]
    assert windows[0]["tokens"].tolist() == [0, 1, 2, 3]
    assert (tmp_path / "a.npy").read_bytes() == before
    assert windows.draws is False
    assert windows.locate(3) == f"{tmp_path / 'a.npy'}, token 3"


def test_what_is_no_tokens_is_refused(tmp_path: Path) -> None:
    for bad in (np.zeros(9), np.zeros((3, 3), int), ["a"] * 9):
        with pytest.raises(TypeError):
            TokenWindows(bad, 4)
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match="3 bytes"):
        TokenWindows(tmp_path / "a.bin", 1, dtype=np.uint16)
    with pytest.raises(ValueError, match="dtype="):
        TokenWindows(tmp_path / "a.bin", 1)
    for options in ({"block": 0}, {"block": 2, "stride": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            TokenWindows(np.arange(9), **options)
