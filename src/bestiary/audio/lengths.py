"""What a set of sound files is like, from its headers: one rate or an error, lengths, and which files are too short."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.audio.headers import Headers, Rows, index_path, read_headers

Doubles: TypeAlias = npt.NDArray[np.float64]
_SHOWN = 10


class Measured(NamedTuple):
    """Lengths in frames (N,) at ``sample_rate``, -1 where a file cannot be read; the rate is None without any samples."""

    lengths: Rows
    sample_rate: int | None


def measured(
    root: Path,
    names: Sequence[str],
    sample_rate: int | None,
    *,
    index: str | os.PathLike[str] | None,
    table: Path | None = None,
    spans: tuple[Doubles, Doubles] | None = None,
) -> Measured:
    """Return how long the samples of a dataset come, from headers alone.

    Args:
        root: the folder of the files.
        names: of each sample (N,); several may be parts of one file.
        sample_rate: that of the samples; None takes the files', which has to be the same in all that have samples.
        index: where headers are kept; None for the user's cache folder.
        table: what lists the files, if it is no folder.
        spans: start and duration of each sample in seconds, (N,) each; a duration of NaN is up to the end.

    Raises:
        ValueError: rates differ and ``sample_rate`` is None; two files are named.
    """
    place = {name: at for at, name in enumerate(dict.fromkeys(names))} if spans is not None else None
    files = names if place is None else list(place)
    found = read_headers(root, files, Path(index) if index is not None else index_path(table or root))
    if found.problems:
        _tell_problems(files, found)
    rows = found.rows if place is None else found.rows[[place[name] for name in names]]
    rate = _one_rate(root, names, rows) if sample_rate is None else sample_rate
    frames, rates = rows[:, 0], rows[:, 1]
    if spans is not None:
        start = np.rint(spans[0] * rates).astype(np.int64)
        rest = np.maximum(frames - start, 0)
        wanted = np.rint(np.where(np.isnan(spans[1]), np.inf, spans[1]) * np.maximum(rates, 1))
        frames = np.where(frames < 0, -1, np.minimum(rest, wanted).astype(np.int64))
    lengths = frames if rate is None else -(-frames * rate // np.maximum(rates, 1))
    return Measured(np.where(frames < 0, -1, lengths), rate)


def long_enough(root: Path, names: Sequence[str], lengths: Rows, min_frames: int) -> npt.NDArray[np.bool_]:
    """Tell which samples have ``min_frames`` or more, or cannot be read (N,), and name those that are left out."""
    keep = np.asarray((lengths >= min_frames) | (lengths < 0))
    if not keep.all():
        short = [f"{names[at]} ({lengths[at]})" for at in np.flatnonzero(~keep).tolist()]
        text = (
            f"{len(short)} of {len(names)} sounds in {root} are left out, as they have fewer than {min_frames} frames"
        )
        warnings.warn(f"bestiary: {text}: {_some(short)}", stacklevel=4)
    return keep


def _one_rate(root: Path, names: Sequence[str], rows: Rows) -> int | None:
    """Return the rate that all files with samples share."""
    full = np.flatnonzero(rows[:, 0] > 0)
    other = full[rows[full, 1] != rows[full[0], 1]] if len(full) else full
    if len(other):
        (one, two), rates = (int(full[0]), int(other[0])), rows[:, 1]
        raise ValueError(
            f"sample rates in {root} differ: {names[one]} has {rates[one]} Hz, {names[two]} has {rates[two]} Hz"
            f" ({len(other)} of {len(full)} differ from the first); give sample_rate= to bring all to one"
        )
    return int(rows[full[0], 1]) if len(full) else None


def _tell_problems(names: Sequence[str], found: Headers) -> None:
    told = [found.problems[at] for at in sorted(found.problems)]
    text = f"{len(told)} of {len(names)} sound files cannot be read, and count as length 0"
    warnings.warn(f"bestiary: {text}: {_some(told)}", stacklevel=5)


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:_SHOWN]) + (f"; ... ({len(texts)} in all)" if len(texts) > _SHOWN else "")
