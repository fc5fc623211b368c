"""Spectrograms of padded batches: a clip's frames are its own, whatever else is in the batch."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.audio import LogMel, SpecAugment
from bestiary.loading import Collate, padding_waste
from sounds import tone


def batch_of(*waveforms, fill=0.0, rate=16000):
    samples = [{"waveform": waveform, "sample_rate": rate, "label": at} for at, waveform in enumerate(waveforms)]
    return Collate(pad={"waveform": fill})(samples)


def test_the_numbers_are_torchaudios():
    waveform = torch.randn(1, 4000)
    out = LogMel(16000, mels=40, n_fft=400, hop=160, low_hz=0)(batch_of(waveform))
    kernel = torchaudio.transforms.MelSpectrogram(16000, 400, hop_length=160, n_mels=40, pad_mode="constant")
    assert torch.allclose(out["mel"][0], kernel(waveform).clamp(min=1e-6).log(), atol=1e-5)
    assert out["mel"].shape == (1, 1, 40, 26)
    assert out["mel_length"].tolist() == [26]
    assert out["mel_mask"].shape == (1, 26)
    assert "waveform" not in out
    assert "waveform_mask" not in out
    assert out["label"].tolist() == [0]


def test_a_tone_lies_in_its_band():
    mel = LogMel(16000, mels=64)(batch_of(torch.from_numpy(tone(8000, hertz=1000.0))[None]))["mel"]
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (20.0, 8000.0))
    place = (2595 * math.log10(1 + 1000 / 700) - low) / (high - low) * 65 - 1
    assert abs(int(mel[0, 0, :, 20].argmax()) - place) <= 1


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=5), st.sampled_from([0.0, 5.0]), st.integers(1, 2))
@settings(deadline=None, max_examples=40)
def test_neighbours_and_padding_change_nothing(lengths, fill, channels):
    clips = [torch.randn(channels, length) for length in lengths]
    step = LogMel(16000, mels=20, n_fft=256, hop=100)
    out = step(batch_of(*clips, fill=fill))
    for place, clip in enumerate(clips):
        frames = 1 + clip.shape[1] // 100 if clip.shape[1] else 0
        assert int(out["mel_length"][place]) == frames == int(out["mel_mask"][place].sum())
        assert not bool(out["mel"][place, :, :, frames:].any())
        if frames:
            alone = step(batch_of(clip))["mel"][0]
            assert torch.allclose(out["mel"][place, :, :, :frames], alone, atol=1e-4)


def test_case_b11_a_batch_with_clips_of_no_and_one_sample():
    clips = [torch.zeros(1, 0), torch.ones(1, 1), torch.randn(1, 16000)]
    out = SpecAugment()(LogMel(16000)(batch_of(*clips)))
    assert out["mel_length"].tolist() == [0, 1, 101]
    assert bool(out["mel"].isfinite().all())
    assert 0 < padding_waste(out) < 1
    only_empty = SpecAugment()(LogMel(16000)(batch_of(clips[0], clips[0])))
    assert only_empty["mel"].shape == (2, 1, 64, 0)
    assert only_empty["mel_mask"].shape == (2, 0)


def test_a_stacked_batch_needs_no_lengths():
    out = LogMel(16000)({"waveform": torch.randn(2, 1, 1600)})
    assert out["mel_length"].tolist() == [11, 11]
    assert bool(out["mel_mask"].all())


def test_waveforms_are_kept_on_demand():
    batch = batch_of(torch.randn(1, 500))
    out = LogMel(16000, keep=True)(batch)
    assert out["waveform"] is batch["waveform"]
    assert "mel" not in batch


def test_wrong_batches():
    with pytest.raises(ValueError, match="made for 16000 Hz, but a clip of the batch has 8000 Hz"):
        LogMel(16000)(batch_of(torch.randn(1, 500), rate=8000))
    with pytest.raises(ValueError, match=r"\(B, C, T\), but found \(1, 500\)"):
        LogMel(16000)({"waveform": torch.randn(1, 500)})
    with pytest.raises(ValueError, match="field 'mel'"):
        SpecAugment()(batch_of(torch.randn(1, 500)))


def spectra(lengths, frames=100, bands=30):
    mel = torch.randn(len(lengths), 1, bands, frames)
    mask = torch.arange(frames) < torch.tensor(lengths)[:, None]
    return {"mel": mel.masked_fill(~mask[:, None, None], 0.0), "mel_mask": mask}


def test_stripes_are_the_clips_mean_and_lie_in_its_real_frames():
    batch = spectra([100, 40, 1])
    torch.manual_seed(0)
    changed_widths = []
    for _ in range(50):
        out = SpecAugment(bands=0, times=1, time_width=20, share=0.2)(batch)
        changed = (out["mel"] - batch["mel"]).abs().amax((1, 2)) > 1e-4  # (B, F)
        assert not bool((changed & ~batch["mel_mask"]).any())
        changed_widths.append(changed.sum(1).tolist())
        for place in range(3):
            real = batch["mel"][place][:, :, batch["mel_mask"][place]]
            covered = out["mel"][place][:, :, changed[place]]
            assert torch.allclose(covered, real.mean().expand_as(covered), atol=1e-4)
    widest = [max(column) for column in zip(*changed_widths, strict=True)]
    assert 15 <= widest[0] <= 20
    assert 5 <= widest[1] <= 8
    assert widest[2] == 0


def test_bands_are_covered_over_the_whole_clip():
    batch = spectra([100, 50])
    torch.manual_seed(1)
    widths = set()
    for _ in range(40):
        out = SpecAugment(bands=1, band_width=6, times=0)(batch)
        changed = (out["mel"] - batch["mel"]).abs() > 1e-4
        assert not bool((changed & ~batch["mel_mask"][:, None, None]).any())
        rows = changed[0, 0].sum(1)
        assert set(rows.tolist()) <= {0, *range(95, 101)}  # a value may equal the mean by chance
        widths.add(int((rows > 0).sum()))
    assert max(widths) <= 6
    assert len(widths) > 3


def test_each_clip_has_stripes_of_its_own():
    torch.manual_seed(0)
    one = spectra([60])
    batch = {name: value.repeat(8, *[1] * (value.ndim - 1)) for name, value in one.items()}
    out = SpecAugment()(batch)["mel"]
    assert len({tuple(row.flatten().tolist()) for row in out}) > 1


def test_without_torchaudio(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio.transforms", None)
    with pytest.raises(ImportError, match=r"torchaudio.*bestiary\[audio\]"):
        LogMel(12345)(batch_of(torch.randn(1, 500), rate=12345))


def test_torchaudio_is_imported_when_it_is_needed():
    code = "import sys; from bestiary.audio import LogMel, SpecAugment; LogMel(16000), SpecAugment(); print('torchaudio' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
