"""Changes of one waveform: lengths, levels, and that the given sample stays as it was."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.audio import AddNoise, Chain, Gain, PadTo, RandomCrop, Speed
from sounds import tone

ALL = [
    RandomCrop(50),
    PadTo(50),
    Gain(),
    AddNoise(),
    AddNoise(noise=torch.ones(7)),
    Speed(),
    Chain([Speed(), PadTo(9)]),
]


def sample(frames, channels=1):
    return {"waveform": torch.randn(channels, frames), "sample_rate": 16000, "label": 3, "name": "x"}


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)
@pytest.mark.parametrize("frames", [0, 1, 200])
@pytest.mark.parametrize("channels", [1, 2])
def test_any_length_passes_and_the_sample_given_stays(transform, frames, channels):
    given_ = sample(frames, channels)
    before = given_["waveform"].clone()
    out = transform(given_)
    assert torch.equal(given_["waveform"], before)
    assert {name: out[name] for name in ("sample_rate", "label", "name")} == {
        "sample_rate": 16000,
        "label": 3,
        "name": "x",
    }
    assert out["waveform"].shape[0] == channels
    assert bool(out["waveform"].isfinite().all())
    out["waveform"].fill_(7)
    assert torch.equal(given_["waveform"], before)


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)
def test_draws_come_from_torchs_generator_and_pickle(transform):
    given_ = sample(300)
    torch.manual_seed(5)
    one = transform(given_)["waveform"]
    torch.manual_seed(5)
    two = pickle.loads(pickle.dumps(transform))(given_)["waveform"]
    assert torch.equal(one, two)


@given(st.integers(1, 40), st.integers(0, 60))
@settings(deadline=None)
def test_crop_is_a_stretch_of_the_sound(frames, length):
    ramp = torch.arange(float(length))[None]
    out = RandomCrop(frames)({"waveform": ramp})["waveform"][0]
    assert len(out) == min(frames, length)
    assert torch.equal(out, out[:1] + torch.arange(float(len(out))))


def test_crop_reaches_both_ends():
    starts = {int(RandomCrop(3)({"waveform": torch.arange(5.0)[None]})["waveform"][0, 0]) for _ in range(200)}
    assert starts == {0, 1, 2}


def test_gain_in_decibels():
    one = {"waveform": torch.ones(1, 4)}
    assert torch.allclose(Gain(20, 20)(one)["waveform"], torch.full((1, 4), 10.0))
    drawn = torch.stack([Gain(-6, 6)(one)["waveform"][0, 0] for _ in range(300)])
    assert 10 ** (-6 / 20) <= float(drawn.min()) < 0.6
    assert 1.7 < float(drawn.max()) <= 10 ** (6 / 20) + 1e-6


@pytest.mark.parametrize("ratio", [-5.0, 0.0, 20.0])
@pytest.mark.parametrize("noise", [None, torch.randn(1, 5000), torch.randn(200_000), torch.ones(3)])
def test_noise_has_the_power_that_the_ratio_says(ratio, noise):
    clean = torch.from_numpy(tone(50_000))[None]
    added = AddNoise(ratio, ratio, noise=noise)({"waveform": clean})["waveform"] - clean
    found = 10 * math.log10(float(clean.double().square().mean() / added.double().square().mean()))
    assert abs(found - ratio) < 0.1


def test_silence_stays_silent():
    silence = {"waveform": torch.zeros(1, 10)}
    assert torch.equal(AddNoise()(silence)["waveform"], torch.zeros(1, 10))
    assert torch.equal(AddNoise(noise=torch.zeros(4))({"waveform": torch.ones(1, 10)})["waveform"], torch.ones(1, 10))


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_speed_changes_length_and_pitch(factor):
    out = Speed([factor])({"waveform": torch.from_numpy(tone(16000))[None]})["waveform"]
    assert out.shape == (1, math.ceil(16000 / factor - 1e-9))
    spectrum = torch.fft.rfft(out[0] * torch.hann_window(out.shape[1]), n=160_000).abs()
    assert abs(int(spectrum.argmax()) / 10 - 440 * factor) < 1


def test_pad_to_keeps_longer_sounds():
    assert PadTo(3)(sample(5))["waveform"].shape == (1, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomCrop(0),
        lambda: PadTo(1.5),
        lambda: PadTo(True),
        lambda: Gain(3, -3),
        lambda: AddNoise(float("nan")),
    ]
    + [
        lambda: Speed([]),
        lambda: Speed([0]),
        lambda: AddNoise(noise=torch.zeros(2, 5)),
        lambda: AddNoise(noise=torch.zeros(0)),
    ],
)
def test_options_that_cannot_be(make):
    with pytest.raises(ValueError, match="should be|draws from low"):
        make()


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": 1},
        {"waveform": [1.0]},
        {"waveform": torch.zeros(5)},
        {"waveform": torch.zeros(1, 5, dtype=torch.int16)},
    ],
)
def test_what_is_no_waveform_is_named(wrong):
    with pytest.raises(ValueError, match="waveform"):
        Gain()(wrong)
