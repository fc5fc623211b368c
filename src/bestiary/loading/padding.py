"""Pad what differs in length: one scatter for a batch, and masks that come from lengths, never from values.

Layout::

    values    B tensors (..., T_i), or one flat (N,) with lengths (B,)
    padded    (B, ..., T)
    mask      bool (B, T), True where real
    lengths   int64 (B,)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.converting import as_array, from_array
from bestiary.loading.faults import CollateError, field, found, kind_of, positions
from bestiary.loading.rooms import room

_BITS = {torch.bfloat16: torch.int16}  # what numpy cannot name is moved as integers of the same size
_BITS |= {getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")}
_WHOLE = frozenset({torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64})
_WIDE_MASK = 2**15  # where 16 bits no longer do
_LONG_ROW = 16_384  # bytes; from here on a copy for each row is faster than one scatter


def pad(values: Sequence[Tensor], fill: float) -> tuple[Tensor, Tensor]:
    """Pad tensors (..., T_i) at the end of their last axis to (B, ..., max T); return the lengths (B,) too.

    The dtype is that of the rows; an empty row's dtype counts only where all rows are empty.

    Raises:
        ValueError: nothing to pad.
        CollateError: leading axes or dtypes differ, a row is a single number, or ``fill`` is no value of the dtype.

    >>> padded, lengths = pad([torch.tensor([5, 6]), torch.tensor([7])], 0)
    >>> padded.tolist(), lengths.tolist()
    ([[5, 6], [7, 0]], [2, 1])
    """
    if len(values) == 0:
        raise ValueError("empty batch")
    lengths = row_lengths(values, "")
    return pad_rows(values, lengths, fill, int(lengths.max()), "")[0], torch.from_numpy(lengths)


def mask_from_lengths(lengths: Tensor, width: int | None = None) -> Tensor:
    """Return the bool mask (B, T), True where real, of rows with these lengths (B,); T is the longest unless given.

    >>> mask_from_lengths(torch.tensor([2, 0])).tolist()
    [[True, True], [False, False]]
    """
    width = int(lengths.max()) if width is None else width
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def padded_field(key: str, values: Sequence[Any], name: str, *, fill: float, multiple: int | None) -> dict[str, Any]:
    """Return the three fields that a padded one becomes, from B tensors, arrays or lists of numbers."""
    kinds = set(map(type, values))
    if tuple in kinds:
        values = [list(row) if type(row) is tuple else row for row in values]
    if kinds <= {list, tuple}:
        return _padded_lists(key, values, name, fill=fill, multiple=multiple)
    lengths = row_lengths(values, name)
    padded, mask = pad_rows(values, lengths, fill, width_of(lengths, multiple), name)
    return {key: padded, **mask_fields(key, mask, lengths)}


def _padded_lists(
    key: str, rows: Sequence[list[Any]], name: str, *, fill: float, multiple: int | None
) -> dict[str, Any]:
    """Do the same for lists of numbers: their dtype is settled by all rows together."""
    numbers = [number for row in rows for number in row]
    if list in set(map(type, numbers)):  # several axes
        arrays = [as_array(row, name) for row in rows]
        return padded_field(key, arrays, name, fill=fill, multiple=multiple)
    flat = as_array(numbers, name, shown=rows)
    flat = flat if flat.size else flat.astype(np.int64 if float(fill).is_integer() else np.float32)
    lengths = row_lengths(rows, name)
    padded, mask = pad_flat(torch.from_numpy(flat), lengths, fill, width_of(lengths, multiple), name)
    return {key: padded, **mask_fields(key, mask, lengths)}


def mask_fields(key: str, mask: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> dict[str, Tensor]:
    """Return ``<key>_mask`` and ``<key>_length``."""
    return {f"{key}_mask": torch.from_numpy(mask), f"{key}_length": torch.from_numpy(lengths)}


def width_of(lengths: np.ndarray[Any, Any], multiple: int | None) -> int:
    """Return the padded width: the longest, or the next multiple, of which there is at least one."""
    longest = int(lengths.max())
    return longest if multiple is None else max(1, -(-longest // multiple)) * multiple


def real(lengths: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Return the mask (B, width) of lengths: wide ones row by row, else one comparison of the narrowest integers that do."""
    if width < _WIDE_MASK:
        mask: np.ndarray[Any, Any] = np.arange(width, dtype=np.int16) < lengths.astype(np.int16)[:, None]
        return mask
    memory = room((len(lengths), width), torch.bool)
    mask = np.empty((len(lengths), width), dtype=bool) if memory is None else memory.numpy()
    for row, length in zip(mask, lengths.tolist(), strict=True):
        row[:length], row[length:] = True, False
    return mask


def row_lengths(values: Sequence[Any], name: str) -> np.ndarray[Any, Any]:
    """Return the length of each row's last axis, int64 (B,).

    Raises:
        CollateError: a row is no tensor, array or list, or is a single number.
    """
    try:
        if set(map(type, values)) == {Tensor} and set(map(Tensor.dim, values)) == {1}:
            lengths = list(map(Tensor.numel, values))  # a sixth of the time that shapes take
        else:
            lengths = [len(row) if isinstance(row, (list, tuple)) else row.shape[-1] for row in values]
        return np.array(lengths, dtype=np.int64)
    except (AttributeError, IndexError):
        pass
    axes = [
        place
        for place, row in enumerate(values)
        if not isinstance(row, (list, tuple)) and not getattr(row, "shape", ())
    ]
    kinds = ", ".join(dict.fromkeys(kind_of(values[place]) for place in axes))
    raise CollateError(
        f"{field(name)} is to be padded but has no axis at {positions(axes)} ({kinds}); give tensors (..., T), or do not pad it"
    )


def pad_rows(
    values: Sequence[Any], lengths: np.ndarray[Any, Any], fill: float, width: int, name: str
) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """Pad tensors or arrays (..., T_i) to (B, ..., width); return the mask (B, width) too."""
    rows = _same_rows(values, lengths, fill, name)
    size = rows[0].element_size() * rows[0].shape[:-1].numel()
    if int(lengths.sum()) * size < _LONG_ROW * len(rows) and rows[0].device.type == "cpu":
        flat = torch.cat(rows, -1)
        if not flat.requires_grad:
            return pad_flat(flat, lengths, fill, width, name)
    out = _unfilled((len(rows), *rows[0].shape[:-1], width), fill, rows[0], rows[0].dtype, name)
    # without axes of one: the stride of such an axis is any number, and 1 makes the copy seventeen times slower
    single = rows[0].dim() > 1 and out.numel() == len(rows) * width
    target = out.view(len(rows), width) if single else out
    for place, row in enumerate(rows):
        target[place, ..., : row.shape[-1]] = row.reshape(-1) if single else row
        target[place, ..., row.shape[-1] :] = fill
    return out, real(lengths, width)


def _same_rows(values: Sequence[Any], lengths: np.ndarray[Any, Any], fill: float, name: str) -> list[Tensor]:
    """Return the rows as tensors, of which dtype and leading axes are equal."""
    rows = list(values)
    if set(map(type, rows)) != {Tensor}:
        rows = [row if isinstance(row, Tensor) else from_array(np.asarray(row), name) for row in rows]
    if not lengths.all():
        rows = _alike(rows, [row for row, length in zip(rows, lengths.tolist(), strict=True) if length], fill)
    if len({row.dtype for row in rows}) > 1:
        raise CollateError(
            f"{field(name)}: dtypes differ: {found(rows, lambda v: v.dtype)}; convert them in the dataset"
        )
    if set(map(Tensor.dim, rows)) != {1} and len({row.shape[:-1] for row in rows}) > 1:
        raise CollateError(
            f"{field(name)}: shapes differ before the last axis: {found(rows, lambda v: tuple(v.shape))}; only the last is padded"
        )
    return rows


def pad_flat(
    flat: Tensor, lengths: np.ndarray[Any, Any], fill: float, width: int, name: str, ids: bool = False
) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """Pad rows that lie one after another in (..., N) to (B, ..., width) by one scatter; return the mask too.

    With ``ids`` integers become int64 on their way.
    """
    dtype = torch.int64 if ids and flat.dtype in _WHOLE else flat.dtype
    mask = real(lengths, width)
    out = filled((len(lengths), *flat.shape[:-1], width), fill, flat, dtype, name)
    target, source = out, flat
    if dtype in _BITS:
        target, source = out.view(_BITS[dtype]), flat.view(_BITS[dtype])
    if flat.dim() == 1:
        target.numpy()[mask] = source.numpy()
    else:  # (B, width, ...) and (N, ...): the mask has to meet the leading axes
        target.movedim(-1, 1).numpy()[mask] = source.movedim(-1, 0).numpy()
    return out, mask


def _alike(rows: list[Tensor], full: list[Tensor], fill: float) -> list[Tensor]:
    """Give empty rows the dtype and leading axes of the full ones; without any, of the row that suits ``fill`` best."""
    whole = float(fill).is_integer()
    model = full[0] if full else next((row for row in rows if row.is_floating_point() != whole), rows[0])
    if not full and len({row.shape for row in rows}) > 1:
        model = max(rows, key=torch.Tensor.dim).to(model.dtype)
    nothing = model[..., :0]
    return [row if row.shape[-1] else nothing for row in rows]


def filled(shape: tuple[int, ...], fill: float, like: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return a tensor of pad values on the device of ``like``, or raise where the dtype cannot hold the value."""
    return _unfilled(shape, fill, like, dtype, name).fill_(fill)


def _unfilled(shape: tuple[int, ...], fill: float, like: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return memory for such a tensor, used before where there is some."""
    if not _fits(fill, dtype):
        raise CollateError(
            f"{field(name)} is {dtype} and cannot hold the pad value {fill!r}; choose a value that it can"
        )
    memory = room(shape, dtype) if like.device.type == "cpu" else None
    return torch.empty(shape, dtype=dtype, device=like.device) if memory is None else memory


@lru_cache
def _fits(fill: float, dtype: torch.dtype) -> bool:
    """Whether an integer or bool dtype can hold the pad value exactly; floating ones may round it."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return fill in (0, 1)
    info = torch.iinfo(dtype)
    return float(fill).is_integer() and info.min <= fill <= info.max
