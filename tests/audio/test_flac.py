"""FLAC through miniaudio: the samples of libsndfile, and where anything is amiss, what libsndfile makes of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.audio import read_audio
from sounds import encoded, tone, write

miniaudio = pytest.importorskip("miniaudio", reason="needs miniaudio, of the extra fast")


@pytest.fixture
def calls(monkeypatch):
    """Count how often miniaudio decodes."""
    real, made = miniaudio.flac_read_s16, []

    def counted(data):
        made.append(len(data))
        return real(data)

    monkeypatch.setattr(miniaudio, "flac_read_s16", counted)
    return made


def outcome(data, **options):
    """Return what is read, or the words of the error."""
    try:
        return read_audio(data, **options)
    except OSError as error:
        return str(error)


def same(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return one.sample_rate == other.sample_rate and torch.equal(one.waveform, other.waveform)


def both(data, **options):
    """Return what is read with miniaudio and without it."""
    with_it = outcome(data, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "miniaudio", None)
        return with_it, outcome(data, **options)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 9000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([8000, 16000, 44100, 96000, 12345]),
)
def test_samples_are_those_of_libsndfile(channels, frames, seed, rate):
    rng = np.random.default_rng(seed)
    loud = rng.choice([1, 300, 32767])
    values = (rng.integers(-loud - 1, loud + 1, (frames, channels))).astype(np.int16)
    data = encoded(values, rate, "FLAC")
    with_it, without = both(data)
    assert same(with_it, without)
    assert torch.equal(with_it.waveform, torch.from_numpy(values.T.astype(np.float32) / 32768))


def test_it_is_used_for_whole_files_of_sixteen_bits(tmp_path, calls):
    path = write(tmp_path / "a.flac", encoded(tone(20000), format="FLAC"))
    expected, _ = soundfile.read(path, dtype="float32")
    for options in ({}, {"duration_s": 1.25}, {"duration_s": 99.0}, {"sample_rate": 8000}, {"channels": "mix"}):
        calls.clear()
        read_audio(path, **options)
        assert len(calls) == 1, options
    assert torch.equal(read_audio(path).waveform[0], torch.from_numpy(expected))
    for options in ({"start_s": 0.5}, {"duration_s": 1.0}):
        calls.clear()
        read_audio(path, **options)
        assert not calls, options


def test_other_depths_are_left_to_libsndfile(calls):
    for subtype in ("PCM_S8", "PCM_24"):
        data = encoded(tone(5000), format="FLAC", subtype=subtype)
        assert same(*both(data))
    assert not calls


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_as_by_libsndfile(data):
    """Only where libsndfile stumbles over tags may there be more: the samples that were written."""
    values = tone(12000)
    whole = bytearray(encoded(values, format="FLAC"))
    if data.draw(st.booleans(), label="one fault anywhere"):
        if data.draw(st.booleans(), label="cut"):
            whole = whole[: data.draw(st.integers(1, len(whole) - 1))]
        else:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    else:  # several behind the stream info, which tells how many samples there should be
        for _ in range(data.draw(st.integers(1, 4), label="bytes changed")):
            whole[data.draw(st.integers(42, len(whole) - 1))] = data.draw(st.integers(0, 255))
        whole = whole[: data.draw(st.integers(43, len(whole)))]
    with_it, without = both(bytes(whole))
    if isinstance(without, str) and not isinstance(with_it, str):
        assert torch.equal(with_it.waveform, read_audio(encoded(values, format="FLAC")).waveform)
    else:
        assert same(with_it, without)
