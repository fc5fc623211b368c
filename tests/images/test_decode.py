"""Decoding: Pillow is the reference, and what it does by default is where the faults lie."""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from bestiary.images import normalize, read_image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels) if channels > 1 else (height, width), dtype=np.uint8)


def picture(height: int, width: int, channels: int = 3) -> Image.Image:
    small = Image.fromarray(noise(max(2, height // 8), max(2, width // 8), channels))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def planes(image: Image.Image) -> torch.Tensor:
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1)


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")
    return request.param


# ---- the JPEG paths


KINDS = {
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True},
    "rgb": {"keep_rgb": True},
    "restarts": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("kind", [*KINDS, "grey", "grey progressive"])
@pytest.mark.parametrize("size", [(48, 64), (37, 53), (8, 8), (1, 1), (3, 100)])
def test_both_decoders_give_the_pixels_of_pillow(decoder: str, kind: str, size: tuple[int, int]) -> None:
    options = KINDS.get(kind, {"progressive": kind.endswith("progressive")})
    data = encoded(picture(*size, channels=1 if "grey" in kind else 3), "JPEG", quality=83, **options)
    for mode in ("RGB", "L", "RGBA"):
        through_rgb = Image.open(io.BytesIO(data)) if "grey" in kind else Image.open(io.BytesIO(data)).convert("RGB")
        assert torch.equal(read_image(data, mode), planes(through_rgb.convert(mode)))


@pytest.mark.parametrize("kind", [*KINDS, "grey"])
@pytest.mark.parametrize(
    ("size", "min_side", "scale"),
    [((96, 130), 48, 2), ((96, 130), 49, 1), ((95, 130), 48, 2), ((97, 130), 24, 4), ((96, 130), 5, 8), ((5, 9), 1, 4)],
)
def test_min_side_stops_at_the_smallest_size_that_is_long_enough(
    decoder: str, kind: str, size: tuple[int, int], min_side: int, scale: int
) -> None:
    data = encoded(picture(*size, channels=1 if kind == "grey" else 3), "JPEG", **KINDS.get(kind, {}))
    expected = Image.open(io.BytesIO(data))
    expected.draft(expected.mode, (size[1] // scale, size[0] // scale))
    image = read_image(data, min_side=min_side)
    assert image.shape == (3, -(-size[0] // scale), -(-size[1] // scale))
    assert torch.equal(image, planes(expected.convert("RGB")))


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_min_side_holds_for_every_size(height: int, width: int, min_side: int) -> None:
    data = encoded(picture(height, width), "JPEG")
    short = min(height, width)
    scale = max(n for n in (1, 2, 4, 8) if n == 1 or (short >= n and -(-short // n) >= min_side))
    assert read_image(data, min_side=min_side).shape == (3, -(-height // scale), -(-width // scale))


def test_min_side_leaves_other_formats_in_full_size() -> None:
    for kind in ("PNG", "GIF", "BMP", "WEBP"):
        assert read_image(encoded(picture(64, 80), kind), min_side=8).shape == (3, 64, 80)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["420", "progressive", "grey"])
def test_a_cut_jpeg_raises(decoder: str, kind: str, part: float, capfd: pytest.CaptureFixture[str]) -> None:
    data = encoded(picture(64, 64, channels=1 if kind == "grey" else 3), "JPEG", **KINDS.get(kind, {}))
    with pytest.raises(OSError, match="cannot read image of"):
        read_image(data[: int(len(data) * part)])
    assert capfd.readouterr() == ("", "")


@given(st.lists(st.tuples(st.integers(20, 2000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_damaged_jpeg_gives_what_pillow_gives_or_raises(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(picture(40, 56), "JPEG", quality=90))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = planes(ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB")))
    except (OSError, SyntaxError, ValueError):
        expected = None
    try:
        image = read_image(bytes(data))
    except OSError:
        assert expected is None
    else:
        assert expected is None or torch.equal(image, expected)


# ---- orientation


def turned(tag: int, kind: str = "JPEG", size: tuple[int, int] = (24, 40), **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = tag
    return encoded(picture(*size), kind, exif=exif, **options)


@pytest.mark.parametrize("tag", range(1, 9))
def test_orientation_is_that_of_pillow_on_every_path(decoder: str, tag: int) -> None:
    for data in (
        turned(tag),
        turned(tag, progressive=True),
        turned(tag, "PNG"),
        turned(tag, "WEBP", lossless=True),
        turned(tag, "TIFF"),
    ):
        expected = planes(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        assert torch.equal(read_image(data), expected)
    half = read_image(turned(tag), min_side=12)
    assert half.shape == ((3, 12, 20) if tag < 5 else (3, 20, 12))


@pytest.mark.parametrize("tag", range(1, 9))
def test_orientation_in_xmp_counts_where_exif_has_none(decoder: str, tag: int) -> None:
    xmp = f'<x:xmpmeta><rdf:Description tiff:Orientation="{tag}"/></x:xmpmeta>'.encode()
    data = encoded(picture(24, 40), "JPEG", xmp=xmp)
    assert torch.equal(read_image(data), planes(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_of_exif_are_read(decoder: str, order: str) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[0x0112], exif[0x010F] = 6, "maker"
    data = encoded(picture(24, 40), "JPEG", exif=exif.tobytes())
    assert torch.equal(read_image(data), planes(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))


def left_red(tag: int | None, exif: bytes | None = None) -> bytes:
    pixels = np.zeros((2, 4, 3), np.uint8)
    pixels[:, 0] = (255, 0, 0)
    block = Image.Exif()
    if tag:
        block[0x0112] = tag
    return encoded(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0, exif=exif or block.tobytes())


def test_case_a17_orientation(decoder: str) -> None:
    def red(image: torch.Tensor) -> torch.Tensor:
        return (image[0] > 150) & (image[1] < 100)

    upright = read_image(left_red(None))
    assert upright.shape == (3, 2, 4)
    assert red(upright)[:, 0].all() and not red(upright)[:, 1:].any()
    six = read_image(left_red(6))
    assert six.shape == (3, 4, 2)
    assert red(six)[0].all() and not red(six)[1:].any()
    assert torch.equal(read_image(left_red(1)), upright)
    assert torch.equal(read_image(left_red(3)), upright.flip(1, 2))
    assert torch.equal(read_image(left_red(8)), upright.transpose(1, 2).flip(1))


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0damaged",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0",
        b"Exif\0\0" + b"\xff" * 40,
        b"Exif\0\0",
    ],
)
def test_a_damaged_exif_block_costs_nothing_but_the_orientation(decoder: str, block: bytes) -> None:
    assert torch.equal(read_image(left_red(None, exif=block)), read_image(left_red(None)))
    assert read_image(encoded(picture(8, 12), "PNG", exif=block)).shape == (3, 8, 12)
    assert read_image(encoded(picture(8, 12), "WEBP", exif=block)).shape == (3, 8, 12)


# ---- modes


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_plain_modes_convert_as_pillow_does(mode: str) -> None:
    colour, grey = picture(20, 30), picture(20, 30, channels=1)
    for image in (colour, grey, colour.quantize(16), grey.convert("1"), colour.convert("P")):
        expected = image.convert(mode) if image.mode in ("1", "L") else image.convert("RGB").convert(mode)
        assert torch.equal(read_image(encoded(image, "PNG"), mode), planes(expected))


def over_white(rgba: np.ndarray) -> np.ndarray:
    alpha = rgba[..., 3:].astype(np.float64) / 255
    return rgba[..., :3] * alpha + 255 * (1 - alpha)


def test_transparency_lies_over_white_unless_it_is_asked_for() -> None:
    rgba = noise(9, 11, 4)
    data = encoded(Image.fromarray(rgba), "PNG")
    assert np.abs(read_image(data).permute(1, 2, 0).numpy() - over_white(rgba)).max() <= 1
    assert torch.equal(read_image(data, "RGBA"), planes(Image.fromarray(rgba)))
    two = Image.merge("LA", [Image.fromarray(rgba[..., n].copy()) for n in (0, 3)])
    expected = over_white(rgba[..., [0, 0, 0, 3]])
    assert np.abs(read_image(encoded(two, "PNG")).permute(1, 2, 0).numpy() - expected).max() <= 1
    assert np.abs(read_image(encoded(two, "PNG"), "L")[0].numpy() - expected[..., 0]).max() <= 1


@pytest.mark.parametrize("transparency", [1, b"\xff\x00"])
def test_a_transparent_palette_colour_becomes_white(transparency: object) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    data = encoded(image, "PNG", transparency=transparency)
    assert read_image(data)[:, 0].T.tolist() == [[255, 0, 0], [255, 255, 255]]
    assert read_image(data, "RGBA")[3, 0].tolist() == [255, 0]
    assert read_image(encoded(image, "PNG"))[:, 0].T.tolist() == [[255, 0, 0], [0, 0, 255]]


def test_a_transparent_grey_or_colour_becomes_white() -> None:
    grey = encoded(Image.fromarray(np.array([[0, 50, 100]], np.uint8)), "PNG", transparency=50)
    assert read_image(grey, "L").tolist() == [[[0, 255, 100]]]
    colour = encoded(Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)), "PNG", transparency=(4, 5, 6))
    assert read_image(colour)[:, 0].T.tolist() == [[1, 2, 3], [255, 255, 255]]


def test_one_bit_is_black_and_white() -> None:
    image = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    for kind in ("PNG", "TIFF", "BMP", "PPM"):
        assert read_image(encoded(image, kind), "L").tolist() == [[[0, 255], [255, 0]]]


def test_case_a13_sixteen_bit_grey_is_scaled() -> None:
    values = np.array([[0, 128, 256, 32768, 65535]], np.uint16)
    expected = [round(int(value) * 255 / 65535) for value in values[0]]
    for kind in ("PNG", "TIFF"):
        image = read_image(encoded(Image.fromarray(values), kind))
        assert image.tolist() == [[expected]] * 3
        assert read_image(encoded(Image.fromarray(values), kind), "L").tolist() == [[expected]]
        scaled = normalize({"image": image})["image"][0, 0]
        torch.testing.assert_close(scaled, torch.from_numpy(values[0] / 65535 * 2 - 1).float(), atol=1 / 255, rtol=0)


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=40))
@settings(deadline=None)
def test_sixteen_bit_grey_is_rounded_everywhere(values: list[int]) -> None:
    image = read_image(encoded(Image.fromarray(np.array([values], np.uint16)), "PNG"), "L")
    assert image[0, 0].tolist() == [(2 * value * 255 + 65535) // (2 * 65535) for value in values]


def test_sixteen_bit_grey_of_other_makers() -> None:
    values = np.array([[0, 257, 65535]], ">u2")
    assert read_image(b"P5 3 1 65535\n" + values.tobytes(), "L").tolist() == [[[0, 1, 255]]]
    big = Image.fromarray(values.astype(np.int32))
    assert big.mode == "I"
    assert read_image(encoded(big, "TIFF"), "L").tolist() == [[[0, 1, 255]]]
    clear = encoded(Image.fromarray(values.astype(np.uint16)), "PNG", transparency=257)
    assert read_image(clear, "L").tolist() == [[[0, 255, 255]]]


@pytest.mark.parametrize("values", [[-1, 0], [0, 65536]])
def test_grey_of_more_than_sixteen_bits_is_an_error(values: list[int]) -> None:
    data = encoded(Image.fromarray(np.array([values], np.int32)), "TIFF")
    with pytest.raises(OSError, match=rf"from {values[0]} to {values[1]}.*16 bits"):
        read_image(data)


def test_float_pixels_are_an_error() -> None:
    with pytest.raises(OSError, match="floats of unknown range"):
        read_image(encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def test_case_a14_cmyk(decoder: str) -> None:
    data = encoded(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "JPEG")
    assert b"Adobe" in data
    for one in (data, without_adobe(data)):
        image = read_image(one)
        assert image.shape == (3, 2, 2)
        assert (image.int() - torch.tensor([255, 0, 0])[:, None, None]).abs().max() <= 3
        torch.stack([image, read_image(encoded(Image.new("RGB", (2, 2)), "JPEG"))])
    assert read_image(encoded(Image.new("CMYK", (64, 64)), "JPEG"), min_side=16).shape == (3, 16, 16)


def test_cmyk_of_the_other_adobe_kind(decoder: str) -> None:
    # transform 2 (YCCK) over the same coded values: Pillow's reading is the expected one
    data = bytearray(encoded(Image.merge("CMYK", [picture(16, 16, 1)] * 4), "JPEG"))
    data[data.index(b"Adobe") + 11] = 2
    expected = planes(Image.open(io.BytesIO(data)).convert("RGB"))
    assert torch.equal(read_image(bytes(data)), expected)


def test_case_a16_one_channel(tmp_path: Path) -> None:
    values = noise(28, 28, 1)
    path = tmp_path / "grey.png"
    Image.fromarray(values).save(path)
    assert torch.equal(read_image(path, "L"), torch.from_numpy(values)[None])
    wide = read_image(path, "RGB")
    assert wide.shape == (3, 28, 28)
    assert all(torch.equal(plane, torch.from_numpy(values)) for plane in wide)


# ---- frames, files, limits


def test_case_a20_first_frame(tmp_path: Path, decoder: str) -> None:
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    red.save(tmp_path / "two.gif", save_all=True, append_images=[blue])
    clear = Image.new("P", (8, 8), 0)
    clear.putpalette([255, 0, 0, 0, 255, 0])
    clear.save(tmp_path / "clear.gif", transparency=1)
    red.save(tmp_path / "two.tif", save_all=True, append_images=[blue])
    red.save(tmp_path / "two.webp", save_all=True, append_images=[blue], lossless=True)
    red.save(tmp_path / "two.png", save_all=True, append_images=[blue])
    red.save(tmp_path / "mpo.jpg", "MPO", save_all=True, append_images=[blue], quality=95)
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    for path in sorted(tmp_path.iterdir()):
        image = read_image(path)
        assert image.shape == (3, 8, 8)
        assert (image.int() - torch.tensor([255, 0, 0])[:, None, None]).abs().max() <= 4, path
    gc.collect()  # an open file left behind would be a ResourceWarning, which is an error here
    assert not before or set(os.listdir("/proc/self/fd")) == before


def test_path_and_bytes_give_the_same(tmp_path: Path) -> None:
    data = encoded(picture(12, 10), "PNG")
    path = tmp_path / "name that lies.jpg"
    path.write_bytes(data)
    for source in (path, str(path), data, bytearray(data), memoryview(data)):
        assert torch.equal(read_image(source), planes(picture(12, 10)))


@pytest.mark.parametrize("limit", [1, 11, None])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "PPM"])
def test_pillows_limit_is_neither_asked_nor_changed(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, kind: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    data = encoded(picture(6, 7), kind)
    assert read_image(data).shape == (3, 6, 7)
    with pytest.raises(ValueError, match=r"42 pixels.*limit of 41.*max_pixels"):
        read_image(data, max_pixels=41)
    assert read_image(data, max_pixels=42).shape == (3, 6, 7)
    assert read_image(data, max_pixels=None).shape == (3, 6, 7)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "jpeg"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK"])
def test_tiffs_of_many_kinds_are_those_of_pillow(compression: str | None, mode: str) -> None:
    if compression == "jpeg" and mode in ("1", "P", "RGBA"):
        mode = "RGB"
    image = picture(20, 30).convert(mode)
    data = encoded(image, "TIFF", compression=compression)
    with Image.open(io.BytesIO(data)) as expected:
        assert torch.equal(
            read_image(data), planes(expected.convert("RGB")) if mode != "RGBA" else planes(image.convert("RGB"))
        )


def test_the_limit_names_the_path_and_counts_the_pixels_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    Image.new("1", (20_000, 10_000)).save(path)
    with pytest.raises(ValueError, match=r"big\.png has 200000000 pixels.*limit of 178956970"):
        read_image(path)
    jpeg = tmp_path / "wide.jpg"
    picture(64, 64).save(jpeg)
    with pytest.raises(ValueError, match=r"wide\.jpg has 4096 pixels.*limit of 4000"):
        read_image(jpeg, min_side=8, max_pixels=4000)


@pytest.mark.parametrize(
    ("name", "content"),
    [("zero.jpg", b""), ("page.jpg", b"<!DOCTYPE html><p>not found"), ("bad.png", b"\x89PNG\r\n\x1a\n")],
)
def test_what_is_no_picture_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OSError, match="cannot read image") as caught:
        read_image(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.__cause__ is not None
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"BM", b"\xff\xd8\xff", b"RIFF", b"II*\0"]),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_picture_or_an_oserror(tail: bytes, head: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = read_image(head + tail, max_pixels=100_000)
        except (OSError, ValueError) as error:
            assert str(error)
        else:
            assert image.dtype == torch.uint8 and image.shape[0] == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone.png"):
        read_image(tmp_path / "gone.png")


def test_postscript_is_not_handed_to_another_program() -> None:
    with pytest.raises(OSError, match="no picture"):
        read_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "CMYK"}, "'RGB', 'L', 'RGBA', not 'CMYK'"),
        ({"min_side": 0}, "min_side"),
        ({"max_pixels": -1}, "max_pixels"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_image(b"", **options)
