"""Class folders of sounds: what a sample is, one rate for all, lengths, and clips that are too short or damaged."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from bestiary.audio import AudioFolder, PadTo, RandomCrop, read_audio
from bestiary.loading import BatchPlan, Collate, LengthBuckets, Loader, Sequential, Shuffled
from sounds import encoded, tone, wav, write


@pytest.fixture
def root(tmp_path):
    """Two classes, five sounds in four formats at 16 kHz."""
    top = tmp_path / "sounds"
    write(top / "dog" / "a.wav", wav(np.arange(1000)))
    write(top / "dog" / "b.FLAC", encoded(tone(2000), format="FLAC"))
    write(top / "rain" / "c.ogg", encoded(tone(3000), format="OGG"))
    write(top / "rain" / "d.mp3", encoded(tone(4000), format="MP3"))
    write(top / "rain" / "old" / "e.wav", encoded(np.stack([tone(500), -tone(500)], axis=1)))
    write(top / "rain" / "notes.txt", b"no sound")
    return top


def test_samples_and_what_the_dataset_tells(root):
    data = AudioFolder(root)
    assert len(data) == 5
    assert data.classes == ["dog", "rain"]
    assert data.class_to_idx == {"dog": 0, "rain": 1}
    assert list(data.names) == ["dog/a.wav", "dog/b.FLAC", "rain/c.ogg", "rain/d.mp3", "rain/old/e.wav"]
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.sample_rate == 16000
    assert data.lengths().tolist() == [1000, 2000, 3000, 4000, 500]
    assert data.draws is False
    for index in range(5):
        sample = data[index]
        assert list(sample) == ["waveform", "sample_rate", "label", "name"]
        assert sample["waveform"].shape == (1, data.lengths()[index])
        assert sample["waveform"].dtype == torch.float32
        assert (sample["sample_rate"], sample["label"]) == (16000, data.labels[index])
        assert os.path.samefile(data.locate(index), root / sample["name"])
    assert data[-1]["waveform"].abs().max() <= 1 / 32768  # the mean of a tone and its opposite
    with pytest.raises(IndexError):
        data[5]
    assert "5 sounds in 2 classes" in repr(data)


def test_options_of_the_listing(root):
    write(root / ".trash" / "x.wav", wav([1]))
    (root / "empty").mkdir()
    with pytest.warns(UserWarning, match=r"bestiary: .*\.trash"):
        data = AudioFolder(root, allow_empty=True, class_from="top", accept=lambda path: path.endswith(".wav"))
    assert data.classes == ["dog", "empty", "rain"]
    assert list(data.names) == ["dog/a.wav", "rain/old/e.wav"]
    assert len(AudioFolder(root, hidden=True, allow_empty=True)) == 6


def test_validation_takes_the_training_classes(root, tmp_path):
    train = AudioFolder(root)
    write(tmp_path / "val" / "rain" / "x.wav", wav([1, 2]))
    assert AudioFolder(tmp_path / "val", classes=train)[0]["label"] == 1
    write(tmp_path / "val" / "snow" / "x.wav", wav([1, 2]))
    with pytest.raises(ValueError, match="snow"):
        AudioFolder(tmp_path / "val", classes=train)


def test_transform(root):
    data = AudioFolder(root)
    cropped = data.with_transform(RandomCrop(100))
    assert cropped.draws is True
    assert all(cropped[index]["waveform"].shape == (1, 100) for index in range(5))
    assert data.transform is None
    assert data[0]["waveform"].shape == (1, 1000)


def test_channels(root):
    kept = AudioFolder(root, channels="keep")
    assert [kept[index]["waveform"].shape[0] for index in range(5)] == [1, 1, 1, 1, 2]
    assert torch.equal(AudioFolder(root, channels=0)[4]["waveform"], kept[4]["waveform"][:1])
    with pytest.raises(ValueError, match=r"sample 4, class 'rain'.*e\.wav has 2 channels"):
        AudioFolder(root, channels="error")[4]
    with pytest.raises(ValueError, match="channels should be"):
        AudioFolder(root, channels="left")


def two_rates(top):
    write(top / "a" / "fast.wav", encoded(tone(32000, 32000), 32000))
    write(top / "a" / "slow.wav", encoded(tone(16000, 16000), 16000))
    return top


def test_case_b03_mixed_rates(tmp_path):
    top = two_rates(tmp_path / "s")
    one, two = AudioFolder(top, sample_rate=48000), AudioFolder(top, sample_rate=48000)
    forward = [one[0], one[1]]
    backward = [two[1], two[0]][::-1]
    for sample, other in zip(forward, backward, strict=True):
        assert torch.equal(sample["waveform"], other["waveform"])
        assert sample["waveform"].shape == (1, 48000)
        assert sample["sample_rate"] == 48000
        spectrum = torch.fft.rfft(sample["waveform"][0] * torch.hann_window(48000)).abs()
        assert abs(int(spectrum.argmax()) - 440) <= 1
    assert one.lengths().tolist() == [48000, 48000]


def test_case_b03_mixed_rates_without_resampling_name_two_files_and_both_rates(tmp_path):
    top = two_rates(tmp_path / "s")
    with pytest.raises(ValueError, match=r"a/fast\.wav has 32000 Hz, a/slow\.wav has 16000 Hz.*sample_rate="):
        AudioFolder(top)


def test_case_b03_a_file_that_changes_later_is_named(tmp_path):
    top = tmp_path / "s"
    write(top / "a" / "x.wav", wav([1, 2, 3]))
    data = AudioFolder(top)
    write(top / "a" / "x.wav", wav([1, 2, 3], rate=8000))
    with pytest.raises(ValueError, match=r"x\.wav has 8000 Hz.*16000 Hz"):
        data[0]


def test_files_without_samples_take_no_part_in_the_rate_check(tmp_path):
    top = tmp_path / "s"
    write(top / "a" / "0.wav", wav([], rate=8000))
    write(top / "a" / "1.wav", wav([1, 2, 3]))
    write(top / "a" / "2.wav", wav([], rate=44100))
    data = AudioFolder(top)
    assert data.sample_rate == 16000
    assert [data[index]["sample_rate"] for index in range(3)] == [16000] * 3
    assert data.lengths().tolist() == [0, 3, 0]
    (top / "a" / "1.wav").unlink()
    assert AudioFolder(top).lengths().tolist() == [0, 0]


@pytest.mark.parametrize("rate", [8000, 11025, 44101])
def test_lengths_are_those_of_the_samples(root, rate):
    data = AudioFolder(root, sample_rate=rate)
    assert data.lengths().tolist() == [math.ceil(n * rate / 16000) for n in (1000, 2000, 3000, 4000, 500)]
    assert data.lengths().tolist() == [data[index]["waveform"].shape[1] for index in range(5)]


def test_case_b09_batches_follow_the_decoded_length(tmp_path):
    top = tmp_path / "s"
    whole = encoded(tone(44100, 44100), 44100, "MP3")
    write(top / "a" / "half.mp3", whole[: len(whole) // 2])
    write(top / "a" / "whole.mp3", whole)
    data = AudioFolder(top)
    assert data.lengths().tolist() == [44100, 44100]
    plan = BatchPlan(Sequential(2), LengthBuckets(data.lengths(), batch_size=2))
    with pytest.warns(UserWarning, match=r"half\.mp3"):
        (batch,) = Loader(data, plan=plan, collate=Collate(pad={"waveform": 0.0}))
    place = batch["name"].index("a/half.mp3")
    length = int(batch["waveform_length"][place])
    assert 10_000 < length < 30_000
    assert batch["waveform_length"][1 - place] == 44100 == batch["waveform"].shape[-1]
    assert batch["waveform_mask"].sum(1)[place] == length


def three(top):
    write(top / "a" / "0.wav", wav([]))
    write(top / "a" / "1.wav", wav([16384]))
    write(top / "a" / "2.wav", wav(np.arange(16000)))
    return top


def test_case_b11_short_clips_kept(tmp_path):
    data = AudioFolder(three(tmp_path / "s"))
    assert data.lengths().tolist() == [0, 1, 16000]
    assert len(data.dropped) == 0
    batch = Collate(pad={"waveform": 0.0})([data[index] for index in range(3)])
    assert batch["waveform"].shape == (3, 1, 16000)
    assert batch["waveform_length"].tolist() == [0, 1, 16000]
    assert batch["waveform_mask"].sum(1).tolist() == [0, 1, 16000]
    ratio = batch["waveform_length"] / batch["waveform"].shape[-1]
    assert bool(ratio.isfinite().all())
    assert torch.equal(batch["waveform"][2], data[2]["waveform"])


def test_case_b11_short_clips_left_out_are_named(tmp_path):
    top = three(tmp_path / "s")
    with pytest.warns(UserWarning, match=r"^bestiary: 2 of 3 sounds .*2 frames.*a/0\.wav \(0\).*a/1\.wav \(1\)"):
        data = AudioFolder(top, min_frames=2)
    assert list(data.names) == ["a/2.wav"]
    assert list(data.dropped) == ["a/0.wav", "a/1.wav"]
    assert data.labels.tolist() == [0]
    assert data.lengths().tolist() == [16000]
    with pytest.warns(UserWarning, match="1 of 3 sounds"):
        assert len(AudioFolder(top, min_frames=1, sample_rate=16000)) == 2


def damaged(top):
    write(top / "a" / "a.wav", b"")
    write(top / "a" / "b.wav", bytes.fromhex("fff15080") + bytes(100))
    write(top / "a" / "c.mp3", wav(np.arange(100)))
    write(top / "a" / "d.wav", wav(np.arange(100)))
    return top


def test_case_b12_damaged_files(tmp_path):
    with pytest.warns(UserWarning, match=r"^bestiary: 2 of 4 .*a\.wav.*b\.wav"):
        data = AudioFolder(damaged(tmp_path / "s"))
    assert data.lengths().tolist() == [0, 0, 100, 100]
    assert data[2]["waveform"].shape == (1, 100)
    with pytest.raises(OSError, match=r"sample 0, class 'a'.*a\.wav.*0 bytes"):
        data[0]
    with pytest.raises(OSError, match=r"sample 1, class 'a'.*b\.wav.*104 bytes.*xff.xf1"):
        data[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_case_b12_skipping_counts_them(tmp_path, workers):
    data = AudioFolder(damaged(tmp_path / "s"), sample_rate=16000, min_frames=0)
    loader = Loader(
        data, batch_size=2, shuffle=True, collate=Collate(pad={"waveform": 0.0}), on_error="skip", num_workers=workers
    )
    names = [name for part in loader for name in part["name"]]
    assert sorted(names) == ["a/c.mp3", "a/d.wav"]
    assert sorted(error.index for error in loader.errors) == [0, 1]
    assert all("a.wav" in str(error) or "b.wav" in str(error) for error in loader.errors)


def test_case_b12_damaged_files_are_not_dropped_as_short(tmp_path):
    with pytest.warns(UserWarning, match="cannot be read"):
        data = AudioFolder(damaged(tmp_path / "s"), min_frames=10)
    assert len(data) == 4


def test_pickle_is_small_and_whole(root):
    data = AudioFolder(root, sample_rate=8000)
    data.lengths()
    text = pickle.dumps(data)
    assert len(text) < 3000
    again = pickle.loads(text)
    assert torch.equal(again[1]["waveform"], data[1]["waveform"])
    assert again.lengths().tolist() == data.lengths().tolist()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_what_the_main_process_gives(root, start):
    data = AudioFolder(root, sample_rate=8000).with_transform(RandomCrop(200))
    plan = BatchPlan(Shuffled(len(data)), LengthBuckets(data.lengths(), max_padded=6000), seed=3)
    collate = Collate(pad={"waveform": 0.0})
    alone = list(Loader(data, plan=plan, collate=collate))
    helped = list(Loader(data, plan=plan, collate=collate, num_workers=2, multiprocessing_context=start))
    assert len(alone) == len(helped)
    for one, two in zip(alone, helped, strict=True):
        assert one["name"] == two["name"]
        assert torch.equal(one["waveform"], two["waveform"])


def test_pad_to_makes_batches_that_stack(root):
    data = AudioFolder(root).with_transform(PadTo(4000))
    batch = next(iter(Loader(data, batch_size=5, shuffle=False)))
    assert batch["waveform"].shape == (5, 1, 4000)
    assert batch["sample_rate"].tolist() == [16000] * 5


def test_listing_with_a_rate_given_opens_no_file(root, monkeypatch):
    opened = []
    monkeypatch.setattr("builtins.open", lambda *args, **_: opened.append(args))
    AudioFolder(root, sample_rate=8000)
    assert opened == []


def test_importing_the_dataset_brings_nothing_heavy():
    code = "import sys; import bestiary.audio.folder, bestiary.audio.manifest; print([m for m in ('soundfile', 'soxr', 'torchaudio', 'PIL', 'torchvision', 'matplotlib') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_folder_and_read_audio_agree(root):
    data = AudioFolder(root, sample_rate=8000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(len(data)):
            expected = read_audio(data.locate(index), sample_rate=8000, channels="mix").waveform
            assert torch.equal(data[index]["waveform"], expected)
