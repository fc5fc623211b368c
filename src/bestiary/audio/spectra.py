"""Log-mel spectrograms of padded batches, and masks laid over them: on the device of the batch, padding kept out.

A clip's frames are the same in whatever batch it comes: it is treated as if silence came after its end, and frames behind
it are 0, masked False, and take part in no mean. The kernels are torchaudio's, imported when first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogMel:
    """Turn ``waveform`` (B, C, T) into ``mel`` (B, C, M, F), natural logarithms of mel band powers, F frames.

    Adds ``mel_mask``, bool (B, F), True where real, and ``mel_length``, int64 (B,): 1 + length // hop frames, 0 for a clip
    without samples. Lengths come from ``waveform_length``; without it every clip is as long as T. The waveform and its
    mask leave the batch, unless ``keep`` is set.

    Args:
        sample_rate: that of the waveforms; a batch that says otherwise is an error.
        mels, n_fft, hop: mel bands M, samples of a window, samples from frame to frame.
        low_hz, high_hz: the range of the bands; None ends at half the sample rate.
        floor: the least power, so that silence has a logarithm.
        keep: leave the waveform and what belongs to it in the batch.
    """

    sample_rate: int
    mels: int = 64
    n_fft: int = 512
    hop: int = 160
    low_hz: float = 20.0
    high_hz: float | None = None
    floor: float = 1e-6
    keep: bool = False

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with spectrograms."""
        waveform, lengths = self._clips(batch)
        length = torch.where(lengths > 0, 1 + lengths // self.hop, 0)
        frames = 1 + waveform.shape[-1] // self.hop if waveform.shape[-1] else 0
        mask = torch.arange(frames, device=waveform.device) < length.unsqueeze(1)
        if frames:
            real = torch.arange(waveform.shape[-1], device=waveform.device) < lengths.unsqueeze(1)
            kernel = _mel_kernel(
                self.sample_rate, self.n_fft, self.hop, self.mels, self.low_hz, self.high_hz, waveform.device
            )
            power = kernel(waveform.masked_fill(~real.unsqueeze(1), 0.0))  # (B, C, M, F)
            mel = power.clamp(min=self.floor).log().masked_fill(~mask[:, None, None], 0.0)
        else:
            mel = waveform.new_zeros((*waveform.shape[:2], self.mels, 0))
        gone = () if self.keep else ("waveform", "waveform_mask", "waveform_length")
        rest = {name: value for name, value in batch.items() if name not in gone}
        return {**rest, "mel": mel, "mel_mask": mask, "mel_length": length}

    def _clips(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return waveforms (B, C, T) and lengths (B,), checked."""
        waveform = batch.get("waveform")
        if not isinstance(waveform, Tensor) or waveform.ndim != 3:
            shape = tuple(waveform.shape) if isinstance(waveform, Tensor) else type(waveform).__name__
            raise ValueError(f"LogMel wants a batch with field 'waveform' (B, C, T), but found {shape}")
        rates = batch.get("sample_rate")
        # asking a device for its values would wait for it, so there the rates are taken on trust
        if isinstance(rates, Tensor) and rates.device.type == "cpu" and not bool((rates == self.sample_rate).all()):
            other = rates[rates != self.sample_rate][0].item()
            raise ValueError(f"LogMel is made for {self.sample_rate} Hz, but a clip of the batch has {other} Hz")
        lengths = batch.get("waveform_length")
        if lengths is None:
            lengths = torch.full((len(waveform),), waveform.shape[-1], dtype=torch.int64, device=waveform.device)
        return waveform, lengths


@lru_cache(maxsize=16)
def _mel_kernel(
    rate: int, n_fft: int, hop: int, mels: int, low_hz: float, high_hz: float | None, device: torch.device
) -> Any:
    # silence at the borders, not a mirror image: else a clip's last frames would depend on how far it is padded
    kinds = _torchaudio("transforms")
    kernel = kinds.MelSpectrogram(
        rate, n_fft, hop_length=hop, n_mels=mels, f_min=low_hz, f_max=high_hz, pad_mode="constant", power=2.0
    )
    return kernel.to(device)


@dataclass(frozen=True)
class SpecAugment:
    """Cover random stripes of ``mel`` (B, C, M, F) with the clip's mean: bands, and stretches of time.

    Each clip has stripes of its own. A stretch of time lies in the clip's real frames and covers at most ``share`` of them;
    padding stays as it is.

    Args:
        bands, band_width: how many stripes of bands, and their greatest width.
        times, time_width: how many stretches of time, and their greatest length in frames.
        share: the greatest part of a clip that one stretch may cover.
    """

    bands: int = 2
    band_width: int = 8
    times: int = 2
    time_width: int = 20
    share: float = 0.2

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with covered spectrograms."""
        mel = batch.get("mel")
        if not isinstance(mel, Tensor) or mel.ndim != 4:
            raise ValueError("SpecAugment wants a batch with field 'mel' (B, C, M, F), as LogMel makes it")
        mask = batch.get("mel_mask")
        real = torch.ones_like(mel[:, 0, 0], dtype=torch.bool) if mask is None else mask  # (B, F)
        lengths, inside = real.sum(1), real[:, None, None]
        count = (lengths * mel.shape[1] * mel.shape[2]).clamp(min=1)
        mean = (mel.masked_fill(~inside, 0.0).sum((1, 2, 3)) / count)[:, None, None, None]
        out = (mel - mean) * self._times(lengths, mel.shape[3])[:, None, None]
        cover = _torchaudio("functional").mask_along_axis_iid
        for _ in range(self.bands if mel.numel() and self.band_width else 0):
            out = cover(out, min(self.band_width, mel.shape[2]), 0.0, 2)
        return {**batch, "mel": torch.where(inside, out + mean, mel)}

    def _times(self, lengths: Tensor, frames: int) -> Tensor:
        """Return False in the stretches of time to cover, (B, F).

        torchaudio's kernel lays them anywhere in the padded width, so that short clips would seldom meet one.
        """
        places = torch.arange(frames, device=lengths.device)
        seen = torch.ones((len(lengths), frames), dtype=torch.bool, device=lengths.device)
        for _ in range(self.times):
            draws = torch.rand((2, len(lengths)), device=lengths.device)
            width = draws[0] * (lengths * self.share).clamp(max=self.time_width)
            start = draws[1] * (lengths - width)
            begin, end = start.long().unsqueeze(1), (start.long() + width.long()).unsqueeze(1)
            seen = seen & ~((places >= begin) & (places < end))
        return seen


def _torchaudio(name: str) -> Any:
    try:
        return import_module(f"torchaudio.{name}")
    except ImportError as error:
        text = "spectrograms need torchaudio; install it with: pip install 'bestiary[audio]'"
        raise ImportError(text) from error
