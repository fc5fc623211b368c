"""Tar archives: what makes a sample, links and twins, and archives that are cut."""

from __future__ import annotations

import io
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from bestiary.records import RecordError, RecordStream, TarSamples
from record_files import write_ids_tar, write_tar

FOUR = [("a.jpg", b"A" * 700), ("a.cls", b"1"), ("b.jpg", b"B" * 700), ("b.cls", b"2")]


def listed(samples: Any) -> list[dict[str, Any]]:
    return [samples[i] for i in range(len(samples))]


def test_samples_are_members_that_share_a_name(tmp_path: Path) -> None:
    samples = TarSamples(write_tar(tmp_path / "s.tar", [("cat/7.JPG", b"x"), ("cat/7.cls", b"3"), ("dog/1.jpg", b"")]))
    assert listed(samples) == [{"name": "cat/7", "jpg": b"x", "cls": b"3"}, {"name": "dog/1", "jpg": b""}]
    assert samples.locate(0) == "s.tar, sample 'cat/7', byte 512"
    assert samples.draws is False and samples.__getitems__([1, 0])[0]["name"] == "dog/1"


def test_case_e23_dots_in_names(tmp_path: Path) -> None:
    members = [("train.v1/22.0/1.1.png", b"p"), ("train.v1/22.0/1.1.cls", b"c"), ("a.wav.data", b"w"), ("noext", b"n")]
    path = write_tar(tmp_path / "s.tar", members)
    with pytest.warns(UserWarning, match=r"bestiary: s\.tar: 1 members without an extension.*noext"):
        found = listed(TarSamples(path))
    assert found == [
        {"name": "train.v1/22.0/1", "1.png": b"p", "1.cls": b"c"},
        {"name": "a", "wav.data": b"w"},
    ]
    with pytest.warns(UserWarning, match="noext"):
        found = listed(TarSamples(path, dots="last"))
    assert found[0] == {"name": "train.v1/22.0/1.1", "png": b"p", "cls": b"c"} and found[1]["name"] == "a.wav"


def test_case_e24_members_that_are_not_neighbours(tmp_path: Path) -> None:
    order = [FOUR[0], FOUR[2], FOUR[1], FOUR[3]]
    path = write_tar(tmp_path / "s.tar", order)
    whole = [{"name": "a", "jpg": b"A" * 700, "cls": b"1"}, {"name": "b", "jpg": b"B" * 700, "cls": b"2"}]
    assert listed(TarSamples(path)) == whole == list(RecordStream(path))
    packed = write_tar(tmp_path / "s.tar.gz", order, "w:gz")
    stream, found, errors = RecordStream(packed).open(0, 1, 0, 0), [], []
    for _ in range(9):
        try:
            found.append(next(stream))
        except RecordError as error:
            errors.append(str(error))
        except StopIteration:
            break
    assert all(sample in whole for sample in found)
    assert errors and "'b'" in errors[0] and "--sort=name" in errors[0]


def test_a_member_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    samples = TarSamples(write_tar(tmp_path / "s.tar", [*FOUR, ("a.jpg", b"again")]))
    with pytest.raises(RecordError, match=r"s\.tar, sample 'a'.*'jpg' twice"):
        samples[0]
    assert samples[1]["cls"] == b"2"


def test_links_stay_within_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        for name, link, kind in [
            ("x/a.txt", "", tarfile.REGTYPE),
            ("x/b.txt", "x/a.txt", tarfile.LNKTYPE),
            ("x/c.txt", "a.txt", tarfile.SYMTYPE),
            ("x/d.txt", "../../etc/passwd", tarfile.SYMTYPE),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"hello") if info.size else None)
    samples = TarSamples(path)
    assert [samples[i]["txt"] for i in range(3)] == [b"hello"] * 3
    with pytest.raises(RecordError, match=r"link to \.\./\.\./etc/passwd, which is not in the archive"):
        samples[3]


def test_twins_of_macos_folders_and_long_names(tmp_path: Path) -> None:
    long = "f" * 90 + "/" + "g" * 120
    members = [
        ("._a.jpg", b"twin"),
        ("a.jpg", b"real"),
        ("__MACOSX/._a.jpg", b"twin"),
        (f"{long}.jpg", b"long"),
        ("é.jpg", b"e"),
    ]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"s{form}.tar"
        with tarfile.open(path, "w", format=form) as archive:
            folder = tarfile.TarInfo("f" * 90)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        with pytest.warns(UserWarning, match="2 members of macOS"):
            found = listed(TarSamples(path))
        assert found == [{"name": "a", "jpg": b"real"}, {"name": long, "jpg": b"long"}, {"name": "é", "jpg": b"e"}]


def both(path: Path | list[Path]) -> tuple[list[str], list[str]]:
    """Return names and errors, the same by index and as a stream."""
    results = []
    for rows in (TarSamples(path), RecordStream(path, format="tar").open(0, 1, 0, 0)):
        names, errors = [], []
        for i in range(len(rows) if isinstance(rows, TarSamples) else 99):
            try:
                sample = rows[i] if isinstance(rows, TarSamples) else next(rows)
                names.append(sample["name"])
                assert set(sample) == {"name", "jpg", "cls"}
            except RecordError as error:
                errors.append(str(error))
            except StopIteration:
                break
        results.append((names, errors))
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("size", "names", "what"),
    [
        (
            5 * 512 + 512 + 300,
            ["a"],
            "within the data of b.jpg",
        ),  # headers and data: a.jpg 3 blocks, a.cls 2, b.jpg from 5
        (5 * 512 + 300, [], "within a header"),
        (5 * 512, [], "without the two blocks of zeros"),
        (10 * 512, ["a"], "without the two blocks of zeros"),
        (0, [], "empty"),
    ],
)
def test_case_e26_an_archive_that_is_cut(tmp_path: Path, size: int, names: list[str], what: str) -> None:
    path = write_tar(tmp_path / "one.tar", FOUR)
    path.write_bytes(path.read_bytes()[:size])
    found, errors = both(path)
    assert found == names and len(errors) == 1
    assert "one.tar" in errors[0] and what in errors[0] and f"{len(names)} samples before" in errors[0]
    write_tar(tmp_path / "two.tar", FOUR)
    found, errors = both([path, tmp_path / "two.tar"])
    assert found == [*names, "a", "b"] and len(errors) == 1


def test_whole_archives_have_no_fault(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", FOUR)
    path.write_bytes(path.read_bytes()[: 10 * 512 + 512])  # one block of zeros is enough
    assert both(path) == (["a", "b"], [])


@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz", "s.tgz"])
def test_packed_archives_as_streams(tmp_path: Path, name: str) -> None:
    path = write_tar(tmp_path / name, FOUR, "w:gz" if "gz" in name else "w")
    assert [sample["name"] for sample in RecordStream(path)] == ["a", "b"]
    if name != "s.tar":
        with pytest.raises(ValueError, match="RecordStream"):
            TarSamples(path)


def test_ten_thousand_members(tmp_path: Path) -> None:
    path = write_ids_tar(tmp_path / "s.tar", range(5000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = TarSamples(path)
        assert len(samples) == 5000 and samples[4321] == {"name": "04321", "id": b"4321", "txt": b"4321"}
        again = TarSamples(path)
        assert again[17]["id"] == b"17"
