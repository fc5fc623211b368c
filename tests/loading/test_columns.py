"""A batch from columns is the batch from the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.loading import Collate, CollateError, Columns


class Ragged:
    def __init__(self, values: Any, lengths: Any) -> None:
        self.values, self.lengths = values, lengths


class Rows(Sequence[dict[str, Any]]):
    """Samples of ids, a label and a name, which have their columns at hand."""

    def __init__(self, rows: list[list[int]], **more: Any) -> None:
        self.rows, self.more = rows, more

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        raise AssertionError("single samples were touched")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("single samples were touched")

    def samples(self) -> list[dict[str, Any]]:
        return [
            {"ids": torch.tensor(row, dtype=torch.int64), "label": i, "name": str(i)} for i, row in enumerate(self.rows)
        ]

    def columns(self) -> dict[str, Any]:
        flat = np.array([number for row in self.rows for number in row], dtype=np.int32)
        names = [str(i) for i in range(len(self.rows))]
        ids = Ragged(flat, np.array([len(row) for row in self.rows], dtype=np.int32))
        return {"ids": ids, "label": np.arange(len(self.rows)), "name": names, **self.more}


ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), min_size=1, max_size=6)


@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:bestiary")
@given(ROWS, st.sampled_from([None, 4]), st.sampled_from(["keep", "drop", "error"]))
def test_columns_equal_samples(rows: list[list[int]], multiple: int | None, empty: Any) -> None:
    collate = Collate(pad={"ids": -1}, pad_to_multiple=multiple, empty=empty)
    outcomes: list[Any] = []
    for samples in (Rows(rows), Rows(rows).samples()):
        try:
            batch = collate(samples)
            outcomes.append(
                [(k, v.dtype, v.tolist()) if isinstance(v, torch.Tensor) else (k, v) for k, v in batch.items()]
            )
        except ValueError as error:
            outcomes.append([type(error), str(error)])
    assert outcomes[0] == outcomes[1]


def test_equal_lengths_need_no_padding() -> None:
    assert isinstance(Rows([[1]]), Columns)
    batch = Collate()(Rows([[1, 2], [3, 4]]))
    assert batch["ids"].tolist() == [[1, 2], [3, 4]]
    assert batch["ids"].dtype == torch.int64
    assert Collate()(Rows([[], []]))["ids"].shape == (2, 0)
    with pytest.raises(CollateError, match="'ids'.*2 at position 0, 1 at position 1"):
        Collate()(Rows([[1, 2], [3]]))


def test_other_columns() -> None:
    floats, tensor = Ragged(np.array([0.5, 1.5, 2.5]), np.array([1, 2])), torch.ones(2, 3, dtype=torch.uint8)
    batch = Collate(pad={"f": 0, "t": 7, "ll": 0}, pad_to_multiple=4)(
        Rows([[1], [2]], f=floats, t=tensor, ll=[[1], [1, 2]])
    )
    assert batch["f"].tolist() == [[0.5, 0, 0, 0], [1.5, 2.5, 0, 0]]
    assert batch["f"].dtype == torch.float64
    assert batch["t"].tolist() == [[1, 1, 1, 7]] * 2
    assert batch["t_length"].tolist() == [3, 3]
    assert batch["ll"].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0]]


def test_read_only_columns_are_copied() -> None:
    frozen = np.arange(2)
    frozen.flags.writeable = False
    Collate()(Rows([[1], [2]], y=frozen))["y"][0] = 9
    assert frozen.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"y": np.zeros(3)}, ["'y'", "3 rows", "2 samples"]),
        ({"y": ["a"]}, ["'y'", "1 rows"]),
        ({"y": 5}, ["'y'", "int"]),
        ({"ids_mask": np.zeros(2)}, ["'ids'", "ids_mask"]),
        ({"ids": Ragged(np.zeros(3), np.array([1, 1]))}, ["'ids'", "3 values", "sum to 2"]),
        ({"ids": np.zeros(2)}, ["'ids'", "no axis"]),
    ],
)
def test_errors(more: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CollateError) as caught:
        Collate(pad={"ids": 0})(Rows([[1], [2]], **more))
    assert [word for word in words if word not in str(caught.value)] == []
    with pytest.raises(CollateError, match="'other'"):
        Collate(pad={"other": 0})(Rows([[1]]))
