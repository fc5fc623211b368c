"""Sounds and parts of them listed in a table."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from bestiary.audio import AudioManifest, RandomCrop, read_audio
from sounds import encoded, tone, wav, write

SPOKEN = Path(__file__).resolve().parents[2] / "recipes" / "data" / "spoken" / "manifest.csv"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "s" / "one.wav", wav(np.arange(16000)))
    write(tmp_path / "s" / "two.mp3", encoded(tone(32000), format="MP3"))
    return tmp_path


def table(folder, text, name="rows.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_parts_texts_labels_and_further_columns(folder):
    path = table(
        folder,
        "path,start,duration,text,label,age\n"
        's/one.wav,,,"good\nmorning",ann,3\ns/one.wav,0.25,0.5,hello,bob,4\ns/two.mp3,1.5,,bye,ann,5\ns/two.mp3,1.75,9,x,ann,6\n',
    )
    data = AudioManifest(path, fields={"age": int})
    assert data.classes == ["ann", "bob"]
    assert data.lengths().tolist() == [16000, 8000, 8000, 4000]
    assert data.lines.tolist() == [2, 4, 5, 6]
    assert data.sample_rate == 16000
    assert len(data) == 4
    assert data.draws is False
    whole = [read_audio(folder / "s" / name).waveform for name in ("one.wav", "two.mp3")]
    parts = [whole[0], whole[0][:, 4000:12000], whole[1][:, 24000:], whole[1][:, 28000:]]
    for index, part in enumerate(parts):
        sample = data[index]
        assert list(sample) == ["waveform", "sample_rate", "name", "label", "text", "age"]
        assert torch.equal(sample["waveform"], part)
    assert (data[0]["text"], data[1]["label"], data[2]["age"], data[3]["name"]) == ("good\nmorning", 1, 5, "s/two.mp3")
    assert data.locate(1) == f"{folder}/s/one.wav ({path}, line 4)"
    assert pickle.loads(pickle.dumps(data))[1]["text"] == "hello"
    assert data.with_transform(RandomCrop(10))[0]["waveform"].shape == (1, 10)


def test_json_lines(folder):
    rows = [
        {"audio_filepath": "s/one.wav", "duration": 0.5, "text": "ä", "snr": 3.5},
        {"audio_filepath": "s/two.mp3", "duration": None, "text": "b", "snr": 1},
    ]
    path = table(folder, "\n".join(map(json.dumps, rows)), "rows.jsonl")
    data = AudioManifest(path, sample_rate=8000)
    assert data.labels is None
    assert data.classes == []
    assert data.lengths().tolist() == [4000, 16000] == [data[index]["waveform"].shape[1] for index in range(2)]
    assert list(data[0]) == ["waveform", "sample_rate", "name", "text", "snr"]
    assert [data[index]["snr"] for index in range(2)] == [3.5, 1.0]


def test_the_spoken_prompts():
    data = AudioManifest(SPOKEN, label_column="language", fields={"prompt": str, "seconds": float})
    assert len(data) == 96
    assert data.classes == ["it", "ru"]
    assert data.sample_rate == 8000
    assert np.abs(data.lengths() / 8000 - [data[index]["seconds"] for index in range(96)]).max() < 1e-3
    assert data[0]["waveform"].shape == (1, data.lengths()[0])


def test_a_class_map_of_another_set(folder):
    path = table(folder, "path,label\ns/one.wav,bob\n")
    assert AudioManifest(path, classes=["ann", "bob"])[0]["label"] == 1
    with pytest.raises(ValueError, match=r"rows\.csv, line 2: label 'bob' is not in"):
        AudioManifest(path, classes=["ann"])


def test_short_parts_are_left_out_by_name(folder):
    path = table(folder, "path,start,duration,label\ns/one.wav,0,1,a\ns/two.mp3,1,0.001,b\ns/one.wav,2,1,a\n")
    with pytest.warns(UserWarning, match=r"bestiary: 2 of 3 .*s/two\.mp3 \(16\).*s/one\.wav \(0\)"):
        data = AudioManifest(path, min_frames=100)
    assert list(data.names) == ["s/one.wav"]
    assert list(data.dropped) == ["s/two.mp3", "s/one.wav"]
    assert data[0]["label"] == 0
    assert data.lines.tolist() == [2]


def test_a_part_behind_the_end_is_an_error_that_names_table_and_line(folder):
    data = AudioManifest(table(folder, "path,start\ns/one.wav,0\ns/one.wav,1.5\n"))
    with pytest.raises(ValueError, match=r"sample 1 .*rows\.csv, line 3.*one\.wav ends before 1\.5 s"):
        data[1]


def test_mixed_rates(folder):
    write(folder / "s" / "slow.wav", wav([1, 2], rate=8000))
    path = table(folder, "path\ns/one.wav\ns/slow.wav\n")
    with pytest.raises(ValueError, match=r"s/one\.wav has 16000 Hz, s/slow\.wav has 8000 Hz"):
        AudioManifest(path)
    assert AudioManifest(path, sample_rate=8000).lengths().tolist() == [8000, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("label\nx\n", r"line 2: expected a column 'file_name' or .*file_column="),
        ("path,start\ns/one.wav,soon\n", r"line 2: column 'start' is 'soon', expected"),
        ("path,start\ns/one.wav,-1\n", r"line 2: column 'start' is '-1', expected seconds"),
        ("path,duration\ns/one.wav,nan\n", r"line 2: column 'duration' is 'nan', expected seconds"),
        ('path\n""\n', r"line 2: column 'path' is empty"),
        ("path,waveform\na,b\n", r"column 'waveform' has the name of a field"),
        ("path,label\na\n", r"line 2: found 1 cells, but the header has 2"),
    ],
)
def test_tables_that_cannot_be_read(folder, text, said):
    with pytest.raises(ValueError, match=said):
        AudioManifest(table(folder, text))


def test_missing_files_are_named_with_their_line(folder):
    path = table(folder, "path,label\ns/one.wav,a\nnowhere.wav,a\n")
    with pytest.warns(UserWarning, match=r"1 of 2 .*nowhere\.wav"):
        data = AudioManifest(path)
    assert data.lengths().tolist() == [16000, 0]
    with pytest.raises(OSError, match=r"sample 1 .*line 3\), class 'a'.*nowhere\.wav"):
        data[1]
