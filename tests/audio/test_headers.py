"""Lengths from headers: read once, kept in an index, read anew where a file has changed."""

from __future__ import annotations

import builtins
import io
import os
import stat

import numpy as np
import pytest
import soundfile

from bestiary.audio import AudioFolder, Header, read_header
from sounds import encoded, tone, wav, write


@pytest.fixture
def root(tmp_path):
    top = tmp_path / "sounds"
    for number in range(150):
        write(top / "ab"[number % 2] / f"{number:03d}.wav", wav(np.zeros(number + 1)))
    return top


def truth(data):
    return [int(name[2:5]) + 1 for name in data.names]


@pytest.fixture
def opened(monkeypatch):
    """The paths of sounds that are opened."""
    paths, real = [], builtins.open

    def counting(path, *args, **options):
        if str(path).endswith((".wav", ".flac")):
            paths.append(str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(builtins, "open", counting)
    return paths


@pytest.mark.parametrize(
    ("format", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "PCM_24"),
        ("WAV", "FLOAT"),
        ("WAV", "IMA_ADPCM"),
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
    ]
    + [
        ("OGG", "VORBIS"),
        ("MP3", "MPEG_LAYER_III"),
        ("AIFF", "PCM_16"),
        ("AU", "ULAW"),
        ("CAF", "ALAC_16"),
        ("W64", "PCM_16"),
    ]
    + [("RF64", "PCM_16"), ("WAVEX", "PCM_16")],
)
def test_headers_of_all_formats(format, subtype):
    for channels in (1, 2):
        data = encoded(np.stack([tone(3000, 44100)] * channels, axis=1), 44100, format, subtype)
        expected = soundfile.info(io.BytesIO(data))
        assert read_header(data) == Header(expected.frames, 44100, channels)


def test_a_second_look_opens_nothing(root, opened):
    first = AudioFolder(root)
    assert first.lengths().tolist() == truth(first)
    assert len(opened) == 150
    opened.clear()
    again = AudioFolder(root)
    assert again.lengths().tolist() == truth(again)
    assert again.sample_rate == 16000
    assert opened == []


def test_changed_new_and_missing_files(root, opened):
    AudioFolder(root)
    opened.clear()
    write(root / "a" / "000.wav", wav(np.zeros(77)))  # another size
    old = os.stat(root / "b" / "001.wav")
    write(root / "b" / "001.wav", wav(np.zeros(2), rate=16000))  # the same size at another time
    os.utime(root / "b" / "001.wav", ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    write(root / "a" / "999.wav", wav(np.zeros(1000)))
    (root / "a" / "002.wav").unlink()
    data = AudioFolder(root)
    found = dict(zip(data.names, data.lengths().tolist(), strict=True))
    assert found.pop("a/000.wav") == 77
    assert found == {name: int(name[2:5]) + 1 for name in found}
    assert sorted(os.path.basename(path) for path in opened) == ["000.wav", "001.wav", "999.wav"]


@pytest.mark.parametrize("harm", [b"", b"PK\3\4 no zip", None])
def test_a_damaged_index_is_made_anew(root, tmp_path, opened, harm):
    index = tmp_path / "my.npz"
    AudioFolder(root, index=index)
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2] if harm is None else harm)
    opened.clear()
    data = AudioFolder(root, index=index)
    assert data.lengths().tolist() == truth(data)
    assert len(opened) == 150
    opened.clear()
    AudioFolder(root, index=index)
    assert opened == []


def test_the_index_lies_in_the_cache_folder_or_where_it_is_wanted(root, cache, tmp_path):
    AudioFolder(root, index=tmp_path / "beside" / "my.npz")
    assert [path.name for path in (tmp_path / "beside").iterdir()] == ["my.npz"]
    assert list(cache.rglob("*.npz")) == []
    AudioFolder(root)
    (path,) = cache.rglob("*.npz")
    assert path.parent == cache / "bestiary"


def test_no_place_for_an_index_is_no_error(root, tmp_path, monkeypatch):
    write(tmp_path / "file", b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    data = AudioFolder(root)
    assert data.lengths().tolist() == truth(data)


def test_no_draft_is_left(root, cache):
    AudioFolder(root)
    assert [path.suffix for path in cache.rglob("*") if path.is_file()] == [".npz"]
    (path,) = cache.rglob("*.npz")
    assert stat.S_ISREG(path.stat().st_mode)


def test_names_that_are_not_utf8(tmp_path):
    top = tmp_path / "sounds"
    (top / "a").mkdir(parents=True)
    with open(os.fsencode(top / "a") + b"/\xff\xfe.wav", "wb") as file:
        file.write(wav(np.zeros(5)))
    write(top / "a" / "täglich\n.wav", wav(np.zeros(6)))
    for _ in range(2):
        data = AudioFolder(top)
        assert sorted(data.lengths().tolist()) == [5, 6]
        assert [data[index]["waveform"].shape[1] for index in range(2)] == data.lengths().tolist()


def test_a_bar_appears_after_two_seconds(root, capsys, monkeypatch):
    now = iter(range(0, 10_000, 1))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    AudioFolder(root)
    out, err = capsys.readouterr()
    assert out == ""
    assert "150 of 150" in err


def test_quick_work_says_nothing(root, capsys):
    AudioFolder(root)
    assert capsys.readouterr() == ("", "")
