"""Sounds in one folder per class.

Layout::

    root/dog/001.wav
    root/rain/17.flac

Sample::

    waveform     float32 (C, T), full scale is 1; T differs between files, C is 1 unless ``channels="keep"``
    sample_rate  int, samples a second, the same in every sample
    label        int, index into ``classes``
    name         str, path below the root
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from operator import index as as_int
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bestiary.audio.decode import Channels, check_options, check_rate, read_audio
from bestiary.audio.formats import EXTENSIONS


class AudioSample(TypedDict):
    """One sound: float32 (C, T), its rate, the index of its class, its path below the root."""

    waveform: Tensor
    sample_rate: int
    label: int
    name: str


class AudioFolder:
    """A dataset of the sounds in class folders.

    Args:
        root: the folder that holds the class folders.
        sample_rate: resample every sound to this; None takes the files' own, which has to be the same in all of them
            (headers are read for that). Files without samples take no part in this.
        channels: "mix" (the mean of a file's channels), "keep" (as in the file), "error" (only files of one channel), or
            the number of the one to take, from 0.
        classes: the class map to use, in any form ``scan_classes`` takes: for a validation set, the training dataset.
        transform: called with each sample, returns the changed sample.
        min_frames: leave out sounds shorter than this (frames at ``sample_rate``), with a notice that names them; they
            are listed in ``dropped``. 0 keeps all, also those without a sample.
        index: the file that keeps what the headers say; None for one in the user's cache folder.
        allow_empty, hidden, accept, class_from: as in ``scan_classes``.

    Attributes:
        classes: names by index, ``labels`` int64 (N,), ``names`` the paths below root, ``dropped`` those left out.

    Raises:
        OSError: root is missing or cannot be read.
        ValueError: rates differ and ``sample_rate`` is None; no class folders, or ones that are empty or unknown.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        sample_rate: int | None = None,
        channels: Channels = "mix",
        classes: object = None,
        transform: Callable[[Any], Any] | None = None,
        min_frames: int = 0,
        index: str | os.PathLike[str] | None = None,
        allow_empty: bool = False,
        hidden: bool = False,
        accept: Callable[[str], bool] | None = None,
        class_from: Literal["top", "path", "leaf"] = "top",
    ) -> None:
        # here and not above: listing is done once, and a worker, to whom the list is sent, does not need it
        from bestiary.files.tree import scan_classes

        check_options(sample_rate, channels)
        self.root = Path(root).expanduser()
        self.transform, self.channels, self.index = transform, channels, index
        self.spent = {"decode": 0.0, "transform": 0.0}  # seconds, in this process; reading is part of decoding
        self.classes, self.names, self.labels = scan_classes(
            self.root,
            extensions=EXTENSIONS,
            classes=classes,
            allow_empty=allow_empty,
            hidden=hidden,
            accept=accept,
            class_from=class_from,
        )
        self.sample_rate, self.resamples = sample_rate, sample_rate is not None
        self.dropped = self.names[:0]
        self._lengths = self._measured() if sample_rate is None or min_frames else None
        if min_frames:
            self._drop(min_frames)

    def _measured(self) -> npt.NDArray[np.int64]:
        from bestiary.audio.lengths import measured

        lengths, self.sample_rate = measured(self.root, self.names, self.sample_rate, index=self.index)
        return lengths

    def _drop(self, min_frames: int) -> None:
        from bestiary.audio.lengths import long_enough

        lengths = np.asarray(self._lengths)
        keep = long_enough(self.root, self.names, lengths, min_frames)
        self.dropped, self.names = self.names.take(np.flatnonzero(~keep)), self.names.take(np.flatnonzero(keep))
        self.labels, self._lengths = self.labels[keep], lengths[keep]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the frames T of each sample before its transform, int64 (N,), from the files' headers.

        0 where a file cannot be read (a notice says so). Headers are read once, in parallel, and kept in the index file.
        What a compressed file says may differ from what is decoded; batches follow the latter.
        """
        if self._lengths is None:
            self._lengths = self._measured()
        return np.maximum(self._lengths, 0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> AudioSample:
        label, name = int(self.labels[as_int(index)]), self.names[index]
        begun = time.perf_counter()
        try:
            audio = read_audio(self.locate(index), sample_rate=self._rate(), channels=self.channels)
            check_rate(self.locate(index), audio.waveform, audio.sample_rate, self.sample_rate)
        except (OSError, ValueError) as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(f"sample {index}, class {self.classes[label]!r}: {error}") from error
        rate = self.sample_rate or audio.sample_rate
        sample: AudioSample = {"waveform": audio.waveform, "sample_rate": rate, "label": label, "name": name}
        decoded = time.perf_counter()
        done: AudioSample = self.transform(sample) if self.transform else sample
        self.spent["decode"] += decoded - begun
        self.spent["transform"] += time.perf_counter() - decoded
        return done

    def _rate(self) -> int | None:
        return self.sample_rate if self.resamples else None

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        return self.classes.class_to_idx

    @property
    def draws(self) -> bool:
        """Tell whether a sample may draw random numbers; it does not without a transform."""
        return self.transform is not None

    def locate(self, index: int) -> str:
        """Return the path of the file that a sample comes from."""
        return os.path.join(self.root, self.names[index])

    def with_transform(self, transform: Callable[[Any], Any] | None) -> AudioFolder:
        """Return a dataset of the same files with another transform, such as the validation half of a split needs.

        Nothing is listed again, and the names are shared.
        """
        other = copy.copy(self)
        other.transform = transform
        return other

    def __repr__(self) -> str:
        return f"AudioFolder({str(self.root)!r}: {len(self)} sounds in {len(self.classes)} classes)"
