"""Reading sound files: every format to the same floats, parts, and files that are not as their headers say."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.audio import read_audio, read_header
from sounds import encoded, tone, wav, write

FORMATS = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")]
RAMP = np.arange(-500, 500)


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_case_b01_four_formats_without_torchcodec(tmp_path, format, subtype):
    path = write(tmp_path / "a.bin", encoded(tone(16000), format=format, subtype=subtype))
    for source in (path, str(path), path.read_bytes()):
        audio = read_audio(source)
        assert audio.waveform.shape == (1, 16000)
        assert audio.waveform.dtype == torch.float32
        assert audio.sample_rate == 16000
        expected, _ = soundfile.read(path, dtype="float32")
        assert torch.equal(audio.waveform[0], torch.from_numpy(expected))


def test_case_b01_torchcodec_is_never_imported(tmp_path):
    for format, subtype in FORMATS:
        write(tmp_path / "x" / format, encoded(tone(4000), format=format, subtype=subtype))
    code = (
        "import sys; from bestiary.audio import *; "
        f"[read_audio(rf'{tmp_path}/x/{{f}}', sample_rate=8000) for f in ('WAV', 'FLAC', 'OGG', 'MP3')]; "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('torchcodec', 'torchaudio', 'PIL', 'torchvision')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_case_b01_a_missing_decoder_names_format_and_package(tmp_path, monkeypatch, format, subtype):
    path = write(tmp_path / "a.bin", encoded(tone(4000), format=format, subtype=subtype))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=rf"{format}.*a\.bin.*soundfile.*bestiary\[audio\]"):
        read_audio(path)


def test_case_b01_an_old_library_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.mp3", encoded(tone(4000), format="MP3"))

    def refuse(*_):
        raise soundfile.LibsndfileError(1)

    monkeypatch.setattr(soundfile, "SoundFile", refuse)
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": ""})
    with pytest.raises(ImportError, match=r"MP3.*a\.mp3.*pip install -U soundfile"):
        read_audio(path)


def test_case_b02_channels(tmp_path):
    two = np.stack([np.full(100, 16384), np.full(100, -16384)], axis=1)
    path = write(tmp_path / "a.wav", wav(two))
    assert torch.equal(read_audio(path, channels="mix").waveform, torch.zeros(1, 100))
    assert torch.equal(read_audio(path, channels=1).waveform, torch.full((1, 100), -0.5))
    kept = read_audio(path).waveform
    assert kept.shape == (2, 100)
    assert kept[:, 0].tolist() == [0.5, -0.5]
    with pytest.raises(ValueError, match=r"a\.wav has 2 channels"):
        read_audio(path, channels="error")
    with pytest.raises(ValueError, match=r"a\.wav has 2 channels.*no channel 2"):
        read_audio(path, channels=2)
    for wrong in ("left", -1, True, 1.0, None):
        with pytest.raises(ValueError, match="channels should be"):
            read_audio(path, channels=wrong)


@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_case_b02_six_channels(format):
    six = np.stack([tone(300, level=0.1 * k) for k in range(1, 7)], axis=1)
    data = encoded(six, format=format, subtype="PCM_16")
    expected = torch.from_numpy(soundfile.read(io.BytesIO(data), dtype="float32")[0].T.copy())
    assert torch.equal(read_audio(data).waveform, expected)
    assert torch.equal(read_audio(data, channels=5).waveform, expected[5:])
    mixed = read_audio(data, channels="mix").waveform
    assert mixed.shape == (1, 300)
    assert torch.allclose(mixed, expected.mean(0, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    ("subtype", "step"),
    [
        ("PCM_U8", 1 / 128),
        ("PCM_16", 2**-15),
        ("PCM_24", 2**-23),
        ("PCM_32", 2**-24),
        ("FLOAT", 1e-7),
        ("DOUBLE", 1e-7),
    ],
)
def test_case_b06_one_scale_for_all_sub_formats(subtype, step):
    values = tone(2000, level=0.9)
    waveform = read_audio(encoded(values, subtype=subtype)).waveform
    assert waveform.dtype == torch.float32
    assert waveform.shape == (1, 2000)
    assert float((waveform[0] - torch.from_numpy(values)).abs().max()) <= step


def test_case_b06_companded():
    values = tone(2000, level=0.9)
    for subtype in ("ULAW", "ALAW"):
        waveform = read_audio(encoded(values, subtype=subtype)).waveform
        assert waveform.dtype == torch.float32
        assert float((waveform[0] - torch.from_numpy(values)).abs().max()) < 0.04  # the coarsest of their steps


def test_case_b06_full_scale_and_silence():
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = bytes([128, 0, 255, 128])
    data = b"RIFF" + struct.pack("<I", 40) + b"WAVEfmt " + struct.pack("<I", 16) + form
    data += b"data" + struct.pack("<I", 4) + body
    assert read_audio(data).waveform.tolist() == [[0.0, -1.0, 127 / 128, 0.0]]
    assert read_audio(wav([-32768, 0, 32767])).waveform.tolist() == [[-1.0, 0.0, 32767 / 32768]]
    for subtype in ("PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
        assert read_audio(encoded(np.array([-1.0, 0.0]), subtype=subtype)).waveform.tolist() == [[-1.0, 0.0]]


@given(st.lists(st.integers(-32768, 32767), max_size=60), st.integers(1, 3))
@settings(deadline=None)
def test_sixteen_bits_are_a_division(values, channels):
    frames = np.array(values[: len(values) // channels * channels], np.int16).reshape(-1, channels)
    assert np.array_equal(read_audio(wav(frames)).waveform.numpy(), (frames / 32768).T.astype(np.float32))


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("said", ["ok", 0xFFFFFFFF, 0x7FFFF000, "long"])
def test_case_b08_sizes_beyond_the_file(tmp_path, subtype, said):
    data = bytearray(encoded(RAMP / 1000, subtype=subtype))
    at = data.find(b"data") + 4
    real = struct.unpack_from("<I", data, at)[0]
    if said != "ok":
        struct.pack_into("<I", data, at, 2 * real if said == "long" else said)
    path = write(tmp_path / "a.wav", bytes(data))
    tracemalloc.start()
    waveform = read_audio(path).waveform
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert waveform.shape == (1, 1000)
    assert torch.allclose(waveform[0], torch.from_numpy(RAMP / 1000).float(), atol=4e-5)
    assert read_header(path).frames == 1000
    assert peak < 1 << 20


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "ULAW"])
def test_case_b08_size_zero_with_samples_behind_is_read_and_reported(tmp_path, subtype):
    data = bytearray(encoded(RAMP / 1000, subtype=subtype))
    struct.pack_into("<I", data, data.find(b"data") + 4, 0)
    path = write(tmp_path / "piped.wav", bytes(data))
    with pytest.warns(UserWarning, match=r"^bestiary: .*piped\.wav.*0 bytes of samples"):
        waveform = read_audio(path).waveform
    assert waveform.shape == (1, 1000)
    assert read_header(path).frames == 1000


def test_case_b08_too_small_a_size_is_reported(tmp_path):
    path = write(tmp_path / "short.wav", wav(RAMP, size=1000))
    with pytest.warns(UserWarning, match=r"^bestiary: .*short\.wav.*1000 more bytes"):
        waveform = read_audio(path).waveform
    assert waveform.shape == (1, 500) == (1, read_header(path).frames)


def test_case_b08_chunks_behind_the_samples_are_no_fault():
    chunk = b"LIST" + struct.pack("<I", 4) + b"INFO"
    assert read_audio(wav(RAMP, behind=chunk)).waveform.shape == (1, 1000)
    assert read_audio(wav(RAMP[:0], behind=chunk + chunk)).waveform.shape == (1, 0)
    assert read_audio(wav(RAMP[:0])).waveform.shape == (1, 0)


@given(st.integers(0, 2**32 - 1), st.integers(0, 100))
@settings(deadline=None)
def test_any_size_in_the_header_gives_header_and_samples_that_agree(said, frames):
    data = wav(np.arange(frames) - 50, size=said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waveform = read_audio(data).waveform
    assert waveform.shape[1] == read_header(data).frames <= frames
    assert torch.equal(waveform[0], (torch.arange(waveform.shape[1]) - 50) / 32768)


def cover(size):
    """An ID3 tag with a picture."""
    frame = b"APIC" + struct.pack(">IH", size, 0) + (b"\0image/jpeg\0\x03\0" + b"\xff\xd8" * size)[:size]
    return b"ID3\3\0\0" + bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0)) + frame


def test_case_b09_lengths_of_compressed_files(tmp_path):
    whole = encoded(tone(44100, 44100), 44100, "MP3")
    for data in (whole, cover(100) + whole, cover(300_000) + whole):
        path = write(tmp_path / "a.mp3", data)
        assert read_audio(path).waveform.shape == (1, 44100)
        assert read_header(path) == (44100, 44100, 1)
    path = write(tmp_path / "half.mp3", whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"^bestiary: .*half\.mp3.*decoded, but the header says 44100"):
        waveform = read_audio(path).waveform
    assert 10_000 < waveform.shape[1] < 30_000
    assert read_header(path).frames == 44100


@pytest.mark.parametrize("format", ["FLAC", "OGG"])
def test_case_b09_half_a_file_of_a_kind_that_knows_better_is_an_error(tmp_path, format):
    data = encoded(tone(44100, 44100), 44100, format)
    path = write(tmp_path / "half.bin", data[: len(data) // 2])
    with pytest.raises(OSError, match=r"half\.bin.*size \d+ bytes"):
        read_audio(path)


def without_length(flac):
    """The same FLAC as a pipe would have left it: the header says 0 samples, which means unknown."""
    (bits,) = struct.unpack_from(">Q", flac, 18)
    return flac[:18] + struct.pack(">Q", bits >> 36 << 36) + flac[26:]


def test_case_b09_flac_from_a_pipe():
    data = without_length(encoded(tone(20000), format="FLAC"))
    assert read_audio(data).waveform.shape == (1, 20000)
    assert torch.equal(read_audio(data).waveform[:, 8000:12000], read_audio(data, 0.5, 0.25).waveform)
    assert read_header(data) == (20000, 16000, 1)


def test_case_b09_flac_that_claims_a_million_times_its_length():
    data = encoded(tone(20000), format="FLAC")
    (bits,) = struct.unpack_from(">Q", data, 18)
    data = data[:18] + struct.pack(">Q", bits >> 36 << 36 | 1 << 34) + data[26:]
    with pytest.raises(OSError, match="20000 samples decoded, but the header says 17179869184"):
        read_audio(data)


def test_case_b09_mp3_of_changing_bit_rate_without_a_count():
    """What libsndfile guesses from its first frame is a fifth of what is there."""
    whole = encoded(np.concatenate([tone(44100, 44100), np.zeros(44100, np.float32)]), 44100, "MP3")
    first = 144 * 128_000 // 44_100  # the frame that holds the count: 128 kbit/s, no padding byte
    assert b"Xing" in whole[:first]
    data = whole[first:]
    assert data[:1] == b"\xff"
    for source in (data, cover(1000) + data):
        frames = read_audio(source).waveform.shape[1]
        assert abs(frames - 88200) < 4 * 1152
        assert read_header(source).frames == frames


def test_case_b11_clips_without_samples():
    for data in (wav([]), encoded(np.zeros(0, np.float32), format="AIFF")):
        audio = read_audio(data, sample_rate=8000, channels="mix")
        assert audio.waveform.shape == (1, 0)
        assert audio.sample_rate == 8000


AAC = bytes.fromhex("fff15080") + bytes(range(200))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes"),
        (AAC, r"AAC.*size 204 bytes.*\\xff\\xf1P.*convert"),
        (b"\0\0\0\x20ftypM4A " + bytes(100), "MP4.*convert"),
        (b"<!DOCTYPE html><html>", "unknown format.*21 bytes.*DOCTYPE"),
        (wav([1, 2, 3])[:30], "WAV.*30 bytes.*RIFF"),
        (wav([1, 2, 3])[:43], "WAV.*43 bytes.*RIFF"),
        (b"fLaC", "FLAC.*4 bytes"),
    ],
)
def test_case_b12_what_is_no_sound_names_path_size_and_first_bytes(tmp_path, data, said):
    path = write(tmp_path / "b.wav", data)
    for read in (read_audio, read_header):
        with pytest.raises(OSError, match=rf"b\.wav.*{said}"):
            read(path)
        with pytest.raises(OSError, match=rf"of {len(data)} bytes"):
            read(data)


def test_case_b12_content_decides(tmp_path):
    for name in ("c.mp3", "c.flac", "c.raw", "c"):
        assert read_audio(write(tmp_path / name, wav(RAMP))).waveform.shape == (1, 1000)
    path = write(tmp_path / "d.wav", encoded(tone(1000), format="FLAC"))
    assert read_audio(path).waveform.shape == (1, 1000)


def test_case_b12_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.wav"):
        read_audio(tmp_path / "nowhere.wav")


PARTS = [*FORMATS, ("FLAC", "PCM_24"), ("OGG", "OPUS"), ("WAV", "IMA_ADPCM"), ("WAV", "GSM610"), ("AIFF", "PCM_16")]


@pytest.mark.parametrize(("format", "subtype"), PARTS)
def test_a_part_equals_that_part_of_the_whole(tmp_path, format, subtype):
    rng = np.random.default_rng(0)
    rate = 48000 if subtype == "OPUS" else 16000
    values = tone(40000, rate) + 0.1 * rng.standard_normal(40000).astype(np.float32)
    path = write(tmp_path / "a.bin", encoded(values, rate, format, subtype))
    whole = read_audio(path).waveform
    spans = [(0, 40), (1, 1), (39990, 100), (576, 2304), (45000, 5)]
    spans += [(int(rng.integers(40000)), int(rng.integers(5000))) for _ in range(25)]
    for start, count in spans:
        part = read_audio(path, start / rate, count / rate).waveform
        assert torch.equal(part, whole[:, start : start + count]), (start, count)
    assert torch.equal(read_audio(path, 20000 / rate).waveform, whole[:, 20000:])


@pytest.mark.parametrize(
    "wrong", [{"start_s": -1}, {"start_s": float("nan")}, {"duration_s": -0.1}, {"duration_s": float("inf")}]
)
def test_impossible_parts(wrong):
    with pytest.raises(ValueError, match="should be 0 or more"):
        read_audio(wav(RAMP), **wrong)


@pytest.mark.parametrize("rate", [0, -1, 1.5, True])
def test_impossible_rates(rate):
    with pytest.raises(ValueError, match="sample_rate should be"):
        read_audio(wav(RAMP), sample_rate=rate)


def test_what_is_returned_may_be_written_into():
    for data in (wav(RAMP), encoded(tone(100), format="FLAC")):
        waveform = read_audio(data).waveform
        assert waveform.is_contiguous()
        waveform.zero_()
        assert read_audio(data).waveform.abs().sum() > 0


def test_no_file_stays_open(tmp_path):
    """An open file would be a ResourceWarning, and those are errors here."""
    for name, data in (("a", wav(RAMP)), ("b", encoded(tone(100), format="FLAC")), ("c", b"no sound")):
        path = write(tmp_path / name, data)
        try:
            read_audio(path)
        except OSError:
            assert name == "c"
        path.unlink()
