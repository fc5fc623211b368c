"""Sounds, or parts of them, listed in a table: a CSV or JSON-lines file.

Layout::

    rows.csv            path,start,duration,text,label,age      rows.jsonl  {"path": "talks/1.flac", "start": 2.5}
                        talks/1.flac,2.5,1.0,good morning,ann,3
    talks/1.flac        file names are relative to the folder of the table, or to ``root``

Sample::

    waveform     float32 (C, T), full scale is 1; C is 1 unless ``channels="keep"``
    sample_rate  int, samples a second, the same in every sample
    label        int, index into ``classes``: if the table has labels
    name         str, the file name as the table has it
    text         str: if the table has texts
    ...          a field for every further column: str, int or float
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping
from operator import index as as_int
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bestiary.audio.decode import Audio, Channels, check_options, check_rate, read_audio


class ManifestSample(TypedDict, total=False):
    """One sound: float32 (C, T), its rate, label, file name and text; further columns are further fields."""

    waveform: Tensor
    sample_rate: int
    label: int
    name: str
    text: str


class AudioManifest:
    """A dataset of the sounds that a table lists, a file or a part of a file in each row.

    The columns ``start`` and ``duration`` are seconds, may be missing or blank, and bound the part to read.

    Args:
        path: the table: .csv, .tsv, or .jsonl / .ndjson (one object a line).
        root: the folder that file names are relative to; by default the folder of the table.
        file_column: the column of file names; by default the first there is of file_name, filename, file, path, audio,
            audio_path, audio_filepath, name.
        label_column: the column of labels; by default label, else class, else there are none. Labels are names of
            classes, integers too.
        fields: which further columns become fields, and their type: ``{"age": float}``; str, int or float. By default
            all of them, as str from CSV and with the type of the first line from JSON.
        sample_rate, channels, classes, transform, min_frames, index: as in ``AudioFolder``.

    Attributes:
        classes: names by index, ``labels`` int64 (N,) or None, ``names`` the file names, ``lines`` int64 (N,) in the
            table, ``dropped`` the names left out for ``min_frames``.

    Raises:
        OSError: the table cannot be read.
        ValueError: rates differ and ``sample_rate`` is None; a column is missing, or a line cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        file_column: str | None = None,
        label_column: str | None = None,
        fields: Mapping[str, type] | None = None,
        sample_rate: int | None = None,
        channels: Channels = "mix",
        classes: object = None,
        transform: Callable[[Any], Any] | None = None,
        min_frames: int = 0,
        index: str | os.PathLike[str] | None = None,
    ) -> None:
        # here and not above: the table is read once, and a worker, to whom the columns are sent, does not need it
        from bestiary.audio.listing import read_listing

        check_options(sample_rate, channels)
        self.path = Path(path).expanduser()
        self.root = self.path.parent if root is None else Path(root).expanduser()
        self.transform, self.channels, self.index = transform, channels, index
        self.spent = {"decode": 0.0, "transform": 0.0}  # seconds, in this process; reading is part of decoding
        found = read_listing(self.path, file_column, label_column, fields, classes)
        self.classes, self.names, self.labels, self._spans, self.lines, self._columns = found
        self.sample_rate, self.resamples = sample_rate, sample_rate is not None
        self.dropped = self.names[:0]
        self._lengths = self._measured() if sample_rate is None or min_frames else None
        if min_frames:
            self._drop(min_frames)

    def _measured(self) -> npt.NDArray[np.int64]:
        from bestiary.audio.lengths import measured

        options: Any = {"index": self.index, "spans": self._spans, "table": self.path}
        lengths, self.sample_rate = measured(self.root, self.names, self.sample_rate, **options)
        return lengths

    def _drop(self, min_frames: int) -> None:
        from bestiary.audio.lengths import long_enough

        lengths = np.asarray(self._lengths)
        keep = np.flatnonzero(long_enough(self.path, self.names, lengths, min_frames))
        self.dropped = self.names.take(np.setdiff1d(np.arange(len(self.names)), keep))
        self.names, self.lines, self._lengths = self.names.take(keep), self.lines[keep], lengths[keep]
        self.labels = None if self.labels is None else self.labels[keep]
        self._spans = None if self._spans is None else (self._spans[0][keep], self._spans[1][keep])
        self._columns = {name: column.take(keep) for name, column in self._columns.items()}

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the frames T of each sample before its transform, int64 (N,), as in ``AudioFolder``."""
        if self._lengths is None:
            self._lengths = self._measured()
        return np.maximum(self._lengths, 0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> ManifestSample:
        name, begun = self.names[as_int(index)], time.perf_counter()
        try:
            audio = self._read(index, os.path.join(self.root, name))
        except (OSError, ValueError) as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            label = "" if self.labels is None else f", class {self.classes[int(self.labels[index])]!r}"
            raise kind(f"sample {index} ({self.path}, line {self.lines[index]}){label}: {error}") from error
        rate = self.sample_rate or audio.sample_rate
        sample: Any = {"waveform": audio.waveform, "sample_rate": rate, "name": name}
        if self.labels is not None:
            sample["label"] = int(self.labels[index])
        for key, column in self._columns.items():
            value = column[index]
            sample[key] = value.item() if isinstance(value, np.generic) else value
        decoded = time.perf_counter()
        done: ManifestSample = self.transform(sample) if self.transform else sample
        self.spent["decode"] += decoded - begun
        self.spent["transform"] += time.perf_counter() - decoded
        return done

    def _read(self, index: int, path: str) -> Audio:
        start, duration = (0.0, None) if self._spans is None else (float(column[index]) for column in self._spans)
        wanted = None if duration is None or np.isnan(duration) else duration
        rate = self.sample_rate if self.resamples else None
        audio = read_audio(path, start, wanted, sample_rate=rate, channels=self.channels)
        check_rate(path, audio.waveform, audio.sample_rate, self.sample_rate)
        if start and wanted != 0 and not audio.waveform.shape[1]:
            raise ValueError(f"audio {path} ends before {start} s, where this part of it should begin")
        return audio

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        return self.classes.class_to_idx

    @property
    def draws(self) -> bool:
        """Tell whether a sample may draw random numbers; it does not without a transform."""
        return self.transform is not None

    def locate(self, index: int) -> str:
        """Return the sound's path, and the table and line that list it."""
        return f"{os.path.join(self.root, self.names[index])} ({self.path}, line {self.lines[index]})"

    def with_transform(self, transform: Callable[[Any], Any] | None) -> AudioManifest:
        """Return a dataset of the same rows with another transform; nothing is read again."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def __repr__(self) -> str:
        return f"AudioManifest({str(self.path)!r}: {len(self)} sounds in {len(self.classes)} classes)"
