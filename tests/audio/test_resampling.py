"""Another rate: the right length, the right pitch, the same whatever came before."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.audio import resample
from sounds import tone


@given(
    st.integers(0, 3000),
    st.sampled_from([(44100, 16000), (44101, 16000), (8000, 16000), (48000, 16000), (3, 2), (2, 3), (16000, 16001)]),
)
@settings(deadline=None, max_examples=150)
def test_case_b04_length_is_rounded_up(frames, rates):
    old, new = rates
    out = resample(torch.ones(2, frames), old, new)
    assert out.shape == (2, math.ceil(frames * new / old))
    assert out.dtype == torch.float32


@pytest.mark.parametrize("old", [44100, 44101])
def test_case_b04_fifty_times_the_same(old):
    waveform = torch.randn(1, 1000)
    first = resample(waveform, old, 16000)
    assert all(torch.equal(first, resample(waveform, old, 16000)) for _ in range(50))
    assert resample(torch.zeros(1, 0), old, 16000).shape == (1, 0)
    assert torch.equal(resample(torch.zeros(1, 1000), old, 16000), torch.zeros(1, 363))


@pytest.mark.parametrize(("old", "new"), [(32000, 48000), (16000, 48000), (44101, 16000), (22050, 16000)])
def test_case_b03_the_pitch_stays(old, new):
    out = resample(torch.from_numpy(tone(old, old))[None], old, new)[0]
    assert len(out) == new
    peak = torch.fft.rfft(out * torch.hann_window(new)).abs().argmax()
    assert abs(int(peak) - 440) <= 1
    middle = out[new // 4 : -new // 4]
    expected = torch.from_numpy(tone(new, new))[new // 4 : -new // 4]
    assert float((middle - expected).abs().max()) < 1e-3


def test_case_b03_what_came_before_does_not_matter():
    sounds = [
        (torch.randn(channels, frames), old) for channels in (1, 2) for frames in (100, 5000) for old in (8000, 44100)
    ]
    forward = [resample(sound, old, 16000) for sound, old in sounds]
    backward = [resample(sound, old, 16000) for sound, old in reversed(sounds)]
    assert all(torch.equal(one, two) for one, two in zip(forward, reversed(backward), strict=True))


def test_channels_are_resampled_each_for_itself():
    two = torch.randn(2, 4000)
    both = resample(two, 44100, 16000)
    assert torch.allclose(both[1:], resample(two[1:], 44100, 16000), atol=1e-6)


def test_more_pairs_of_rates_than_are_kept():
    waveform = torch.randn(1, 500)
    first = resample(waveform, 8000, 9000)
    for old in range(8001, 8060):
        resample(waveform, old, 9000)
    assert torch.equal(first, resample(waveform, 8000, 9000))


def test_the_same_rate_changes_nothing():
    waveform = torch.randn(2, 10)
    assert torch.equal(resample(waveform, 16000, 16000), waveform)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="rates should be 1 or more"):
        resample(torch.zeros(1, 5), 0, 16000)
    with pytest.raises(ValueError, match=r"should be \(C, T\)"):
        resample(torch.zeros(5), 8000, 16000)


def test_without_soxr(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(ImportError, match=r"soxr.*bestiary\[audio\]"):
        resample(torch.zeros(1, 5), 12345, 16000)
