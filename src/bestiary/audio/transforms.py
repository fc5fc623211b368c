"""Changes of one sample's waveform, from sample to sample: crop, pad, louder or softer, noise, faster or slower.

Random ones draw from torch's global generator, which the loader seeds for each sample. All leave the sample that they are
given as it was, and let a sound without samples pass. ``Chain`` makes one of several, which pickles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bestiary.audio.resampling import resample


@dataclass(frozen=True)
class Chain:
    """Apply several transforms, the first one first.

    >>> Chain([RandomCrop(2), PadTo(3)])({"waveform": torch.ones(1, 5)})["waveform"].tolist()
    [[1.0, 1.0, 0.0]]
    """

    steps: Sequence[Callable[[Any], Any]]

    def __call__(self, sample: Any) -> Any:
        """Return what the last step returns."""
        for step in self.steps:
            sample = step(sample)
        return sample


@dataclass(frozen=True)
class RandomCrop:
    """Cut ``frames`` out at a random place; shorter sounds stay whole.

    >>> RandomCrop(2)({"waveform": torch.ones(1, 5)})["waveform"].shape
    torch.Size([1, 2])
    """

    frames: int

    def __post_init__(self) -> None:
        _check_frames(self.frames)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with a part of its waveform (C, T)."""
        waveform = _waveform(sample)
        spare = waveform.shape[1] - self.frames
        start = int(torch.randint(spare + 1, ())) if spare > 0 else 0
        return {**sample, "waveform": waveform[:, start : start + self.frames].clone()}


@dataclass(frozen=True)
class PadTo:
    """Add silence at the end up to ``frames``; longer sounds stay as they are.

    >>> PadTo(4)({"waveform": torch.ones(1, 3)})["waveform"].tolist()
    [[1.0, 1.0, 1.0, 0.0]]
    """

    frames: int

    def __post_init__(self) -> None:
        _check_frames(self.frames)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with a waveform (C, T) of ``frames`` or more."""
        waveform = _waveform(sample)
        return {**sample, "waveform": pad(waveform, (0, max(0, self.frames - waveform.shape[1])))}


@dataclass(frozen=True)
class Gain:
    """Make a sound louder or softer by a random number of decibels in [``low_db``, ``high_db``]."""

    low_db: float = -6.0
    high_db: float = 6.0

    def __post_init__(self) -> None:
        _check_range("Gain", "dB", self.low_db, self.high_db)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with its waveform (C, T) scaled; what exceeds full scale is not clipped."""
        return {**sample, "waveform": _waveform(sample) * 10 ** (_between(self.low_db, self.high_db) / 20)}


@dataclass(frozen=True)
class AddNoise:
    """Add noise at a random signal-to-noise ratio in [``low_db``, ``high_db``]; silence stays silent.

    Args:
        noise: a recording (N,) or (1, N) to take a random stretch of, repeated where it is too short; None for white
            noise, different in each channel.
    """

    low_db: float = 10.0
    high_db: float = 30.0
    noise: Tensor | None = None

    def __post_init__(self) -> None:
        _check_range("AddNoise", "dB", self.low_db, self.high_db)
        if self.noise is not None and (not self.noise.numel() or self.noise.numel() != self.noise.shape[-1]):
            raise ValueError(f"noise should be (N,) or (1, N), but its shape is {tuple(self.noise.shape)}")

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with noise in its waveform (C, T), whose power over the noise's is the ratio drawn."""
        waveform = _waveform(sample)
        ratio_db, noise = _between(self.low_db, self.high_db), self._stretch(waveform)
        signal_power, noise_power = waveform.square().mean(), noise.square().mean()
        if not waveform.numel() or not signal_power > 0 or not noise_power > 0:
            return {**sample, "waveform": waveform.clone()}
        return {**sample, "waveform": waveform + noise * (signal_power / noise_power / 10 ** (ratio_db / 10)).sqrt()}

    def _stretch(self, waveform: Tensor) -> Tensor:
        """Return noise of the waveform's length, (C, T) or (T,)."""
        if self.noise is None:
            return torch.randn_like(waveform)
        noise, frames = self.noise.reshape(-1), waveform.shape[1]
        start = int(torch.randint(max(1, len(noise) - frames + 1) if len(noise) > frames else len(noise), ()))
        return noise.roll(-start).repeat(-(-frames // len(noise)))[:frames]


@dataclass(frozen=True)
class Speed:
    """Play a sound faster or slower, pitch included, by one of ``factors``; 1.1 makes it shorter by a tenth.

    The length becomes ceil(T / factor), with the factor rounded to hundredths; ``sample_rate`` stays.
    """

    factors: Sequence[float] = (0.9, 1.0, 1.1)

    def __post_init__(self) -> None:
        if not self.factors or not all(0.01 <= factor < math.inf for factor in self.factors):
            raise ValueError(f"factors should be numbers of at least 0.01, but are {self.factors!r}")

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with its waveform (C, T) at another speed."""
        waveform = _waveform(sample)
        hundredths = round(100 * self.factors[int(torch.randint(len(self.factors), ()))])
        return {**sample, "waveform": waveform.clone() if hundredths == 100 else resample(waveform, hundredths, 100)}


def _between(low: float, high: float) -> float:
    return low + float(torch.rand(())) * (high - low)


def _waveform(sample: Mapping[str, Any]) -> Tensor:
    """Return the waveform of a sample, or say what is wrong with it."""
    if "waveform" not in sample:
        raise ValueError(f"there is no field 'waveform'; the fields are {', '.join(map(repr, sample))}")
    waveform = sample["waveform"]
    if not isinstance(waveform, Tensor) or waveform.ndim != 2 or not waveform.is_floating_point():
        found = f"{waveform.dtype} {tuple(waveform.shape)}" if isinstance(waveform, Tensor) else type(waveform).__name__
        raise ValueError(f"field 'waveform' should be a float tensor (C, T), but is {found}")
    return waveform


def _check_frames(frames: int) -> None:
    if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
        raise ValueError(f"frames should be a positive whole number, but is {frames!r}")


def _check_range(name: str, unit: str, low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"{name} draws from low to high {unit}, but got {low!r} and {high!r}")
