"""Normalising, cropping and resizing: torchvision's kernels and plain arithmetic are what these are held against."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.images import Paired, denormalize, eval_transform, normalize, normalize_unit, train_transform

tv = pytest.importorskip("torchvision.transforms.v2.functional")
v2 = pytest.importorskip("torchvision.transforms.v2")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")


def random_image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def as_decoded(image: torch.Tensor) -> torch.Tensor:
    """The same picture, laid out in memory as decoders do."""
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


# ---- normalising


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_normalize_has_exact_ends_and_even_steps(dtype: torch.dtype) -> None:
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    out = normalize({"image": image}, dtype=dtype)["image"]
    assert out.dtype == dtype
    assert out[0, 0, 0] == -1 and out[0, -1, -1] == 1
    expected = (image.double() / 255 * 2 - 1).to(dtype)
    torch.testing.assert_close(out, expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert torch.equal(out, -out.flip(1, 2))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_case_a16_normalize_takes_any_number_of_channels(channels: int, batch: tuple[int, ...]) -> None:
    image = random_image(*batch, channels, 5, 6)
    mean, std = [0.1 * n for n in range(1, channels + 1)], [0.2 * n for n in range(1, channels + 1)]
    out = normalize({"image": image}, mean=mean, std=std)["image"]
    torch.testing.assert_close(out, tv.normalize(image / 255, mean, std))
    torch.testing.assert_close(normalize_unit({"image": image / 255}, mean=mean, std=std)["image"], out)
    torch.testing.assert_close(
        normalize({"image": image}, mean=mean, std=0.5)["image"], tv.normalize(image / 255, mean, [0.5] * channels)
    )
    for wrong in ({"mean": [0.5] * 2}, {"std": (0.5, 0.5)}):
        with pytest.raises(ValueError, match=rf"has 2 values, but .* {channels} channels"):
            normalize({"image": image}, **wrong)


def test_one_mean_in_a_list_is_not_spread_over_three_channels() -> None:
    with pytest.raises(ValueError, match="mean has 1 values, but .* 3 channels"):
        normalize({"image": random_image(3, 2, 2)}, mean=[0.5], std=[0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mean", [0.5, [0.1, 0.2, 0.3]])
def test_normalize_lays_out_for_convolutions_if_asked(dtype: torch.dtype, mean: Any) -> None:
    image = random_image(3, 5, 7).repeat(2, 1, 1, 1)
    plain = normalize({"image": image}, mean=mean, dtype=dtype)["image"]
    last = normalize({"image": image}, mean=mean, dtype=dtype, memory_format=torch.channels_last)["image"]
    assert last.dtype == dtype and torch.equal(last, plain)
    assert last.is_contiguous(memory_format=torch.channels_last) and plain.is_contiguous()
    with pytest.raises(ValueError, match=r"takes a batch \(B, C, H, W\).*\(3, 5, 7\)"):
        normalize({"image": image[0]}, memory_format=torch.channels_last)


def test_normalize_keeps_what_it_was_given() -> None:
    batch = {
        "image": random_image(2, 3, 4, 4),
        "mask": torch.ones(2, 4, 4, dtype=torch.uint8),
        "label": torch.tensor([1, 2]),
    }
    before = copy.deepcopy(batch)
    out = normalize(batch, mean=[0.1, 0.2, 0.3])
    assert batch.keys() == out.keys()
    for name, value in before.items():
        assert torch.equal(batch[name], value)
    assert out["mask"] is batch["mask"] and out["label"] is batch["label"]
    floats = {"image": batch["image"] / 255}
    kept = floats["image"].clone()
    back = denormalize(normalize_unit(floats))
    assert torch.equal(floats["image"], kept) and torch.equal(back["image"], batch["image"])


def test_case_a21_only_uint8_is_scaled() -> None:
    def sample(value: float, dtype: torch.dtype) -> dict[str, Any]:
        return {"image": torch.full((3, 2, 2), value, dtype=dtype), "mask": torch.full((2, 2), 255, dtype=torch.uint8)}

    out = normalize(sample(255, torch.uint8))
    assert (out["image"] == 1).all() and (out["mask"] == 255).all()
    assert (normalize(sample(0, torch.uint8))["image"] == -1).all()
    for dtype, name in ((torch.int32, "int32"), (torch.int64, "int64"), (torch.float32, "float32")):
        for function in (normalize, normalize_unit):
            with pytest.raises(ValueError, match=rf"{name} in \[255, 255\]"):
                function(sample(255, dtype))
    assert (normalize_unit(sample(1, torch.float32))["image"] == 1).all()
    assert (normalize_unit(sample(0, torch.float32))["image"] == -1).all()
    with pytest.raises(ValueError, match=r"float32 in \[1, 1\].*normalize_unit"):
        normalize(sample(1, torch.float32))
    with pytest.raises(ValueError, match=r"uint8 in \[1, 1\].*goes through normalize"):
        normalize_unit(sample(1, torch.uint8))


def test_normalising_twice_is_an_error_even_for_a_bright_picture() -> None:
    once = normalize({"image": torch.full((3, 2, 2), 200, dtype=torch.uint8)})
    assert (once["image"] >= 0).all()
    with pytest.raises(ValueError, match="float32"):
        normalize(once)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
def test_normalize_unit_checks_the_range(value: float) -> None:
    image = torch.full((1, 2, 2), 0.5)
    image[0, 1, 1] = value
    with pytest.raises(ValueError, match="float32 in"):
        normalize_unit({"image": image})


@given(st.tuples(*[st.floats(0, 1)] * 3), st.tuples(*[st.floats(0.01, 2)] * 3))
@settings(deadline=None)
def test_denormalize_undoes_normalize(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(3, 16, 16)
    out = denormalize(normalize({"image": image}, mean=mean, std=std), mean=mean, std=std)["image"]
    assert out.dtype == torch.uint8 and torch.equal(out, image)


def test_denormalize_cuts_at_black_and_white_and_refuses_the_rest() -> None:
    out = denormalize({"image": torch.tensor([[[-7.0, 7.0]]])})
    assert out["image"].tolist() == [[[0, 255]]]
    for image in (torch.tensor([[[float("nan")]]]), random_image(1, 2, 2)):
        with pytest.raises(ValueError, match="without NaN"):
            denormalize({"image": image})


def test_another_field_and_what_is_wrong_with_it() -> None:
    picture = random_image(3, 2, 2)
    assert normalize({"left": picture}, field="left")["left"].dtype == torch.float32
    with pytest.raises(ValueError, match="no field 'image'; the fields are 'left'"):
        normalize({"left": picture})
    with pytest.raises(TypeError, match="list"):
        normalize({"image": [picture]})
    with pytest.raises(TypeError, match="Tensor"):
        normalize(picture)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        normalize({"image": picture[0]})
    with pytest.raises(ValueError, match="greater than 0"):
        normalize({"image": picture}, std=0.0)


# ---- cropping and resizing


@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, as_decoded])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_eval_transform_gives_torchvisions_pixels(
    layout: Callable[[torch.Tensor], torch.Tensor], channels: int
) -> None:
    for height, width in ((375, 500), (500, 375), (40, 40), (31, 67), (224, 256)):
        image = random_image(channels, height, width)
        for size in (224, 32):
            expected = tv.center_crop(tv.resize(image, [round(size * 8 / 7)], antialias=True), [size, size])
            out = eval_transform(size)({"image": layout(image)})["image"]
            assert out.dtype == torch.uint8 and out.is_contiguous() and torch.equal(out, expected)
    expected = tv.center_crop(tv.resize(image, [40], antialias=True), [32, 32])
    assert torch.equal(eval_transform(32, resize=40)({"image": image})["image"], expected)


def test_eval_transform_takes_the_middle_of_a_long_strip() -> None:
    image = torch.zeros(3, 1, 5000, dtype=torch.uint8)
    image[..., 2400:2600] = 200
    out = eval_transform(64)({"image": image})["image"]
    assert out.shape == (3, 64, 64) and (out == 200).all()


@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, as_decoded])
def test_train_transform_gives_the_pixels_of_a_torchvision_crop(layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    height, width = 60, 90
    image, crops = random_image(3, height, width), set()
    for seed in range(40):
        # at 128 pixels each source pixel of the crop is seen in a mask of positions; the crop does not depend on the size
        place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"))
        torch.manual_seed(seed)
        rows, columns = train_transform(128)({"image": image, "mask": place})["mask"][:, [0, -1], [0, -1]].tolist()
        box = (rows[0], min(columns), rows[1] - rows[0] + 1, abs(columns[1] - columns[0]) + 1)
        for size in (128, 32):
            torch.manual_seed(seed)
            out = train_transform(size)({"image": layout(image)})["image"]
            expected = tv.resized_crop(image, *box, [size, size], antialias=True)
            assert out.is_contiguous()
            assert torch.equal(out, expected.flip(-1) if columns[0] > columns[1] else expected)
        crops.add(box)
    assert len(crops) > 30


def test_train_transform_draws_what_torchvision_draws() -> None:
    """Area and shape of 600 crops have the mean that torchvision's have; the mean of so many lies within 4 errors."""
    reference = v2.RandomResizedCrop(8)
    image = torch.zeros(3, 60, 80, dtype=torch.uint8)
    place = torch.arange(80).expand(60, 80)
    upright = torch.arange(60)[:, None].expand(60, 80)
    torch.manual_seed(0)
    ours, theirs = [], []
    for _ in range(600):
        out = train_transform(100, flip=0)({"image": image, "mask": torch.stack([upright, place])})["mask"]
        rows, columns = out[:, [0, -1], [0, -1]].tolist()  # at 100 pixels the first and last source pixel are seen
        ours.append([rows[1] - rows[0] + 1.0, columns[1] - columns[0] + 1.0, rows[0], columns[0]])
        found = reference.make_params([image])
        theirs.append([float(found[name]) for name in ("height", "width", "top", "left")])
    mine, reference_mean = torch.tensor(ours), torch.tensor(theirs)
    error = 4 * mine.std(0) * (2 / 600) ** 0.5
    assert ((mine.mean(0) - reference_mean.mean(0)).abs() < error).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (2, 3), (1000, 2)])
def test_pictures_of_any_shape_come_out_square(size: tuple[int, int]) -> None:
    image = torch.full((3, *size), 77, dtype=torch.uint8)
    for transform in (train_transform(16), eval_transform(16)):
        out = transform({"image": image, "mask": image[0], "boxes": torch.zeros(0, 4)})
        assert out["image"].shape == (3, 16, 16) and out["mask"].shape == (16, 16) and out["boxes"].shape == (0, 4)
        assert (out["image"] == 77).all() and (out["mask"] == 77).all()


def test_case_a22_image_and_mask_get_the_same_draw() -> None:
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[..., :16] = 1
    flip = train_transform(32, scale=(1, 1), ratio=(1, 1))
    turns = 0
    for seed in range(200):
        torch.manual_seed(seed)
        out = flip({"image": image, "mask": image[0].long()})
        assert torch.equal(out["image"][0].long(), out["mask"]) and out["mask"].dtype == torch.int64
        turns += int(out["mask"][0, 0] == 0)
    assert abs(turns / 200 - 0.5) < 0.12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.int32, torch.bool, torch.float32])
def test_a_mask_keeps_its_values_and_lies_where_the_picture_lies(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 7, 255]).to(dtype)
    mask = values[torch.randint(0, 3, (6, 8), generator=torch.Generator().manual_seed(0))].repeat_interleave(20, 0)
    mask = mask.repeat_interleave(20, 1)
    image = mask.to(torch.uint8)[None] * (255 if dtype == torch.bool else 1)
    for transform in (train_transform(64), eval_transform(64)):
        for seed in range(20):
            torch.manual_seed(seed)
            out = transform({"image": image, "mask": mask})
            assert out["mask"].dtype == dtype
            assert set(out["mask"].unique().tolist()) <= set(values.tolist())
            same = out["mask"].to(torch.uint8) * (255 if dtype == torch.bool else 1) == out["image"][0]
            assert same.float().mean() > 0.6  # away from the borders between patches, where the picture mixes
    assert transform({"image": image, "mask": mask[None]})["mask"].shape == (1, 64, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_boxes_follow_the_picture(dtype: torch.dtype) -> None:
    image = torch.zeros(3, 80, 120, dtype=torch.uint8)
    image[:, 30:50, 40:80] = 255
    boxes = torch.tensor([[40, 30, 80, 50]], dtype=dtype)
    for seed in range(30):
        torch.manual_seed(seed)
        out = train_transform(160, scale=(0.5, 1))({"image": image, "boxes": boxes})
        assert out["boxes"].dtype == dtype and torch.equal(boxes, torch.tensor([[40, 30, 80, 50]], dtype=dtype))
        bright = out["image"][0] > 127
        if bright.any():
            rows, columns = bright.any(1).nonzero(), bright.any(0).nonzero()
            seen = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (out["boxes"][0] - seen).abs().max() <= 1.51


def test_tv_tensors_keep_their_kind_and_their_box_format() -> None:
    image = random_image(3, 60, 80)
    boxes = torch.tensor([[10.0, 20, 50, 40]])
    middle = torch.tensor([[30.0, 30, 40, 20]])
    kinds = {
        "image": tv_tensors.Image(image),
        "mask": tv_tensors.Mask(image[0]),
        "boxes": tv_tensors.BoundingBoxes(middle, format="CXCYWH", canvas_size=(60, 80)),
    }
    for transform in (train_transform(32), eval_transform(32)):
        torch.manual_seed(3)
        plain = transform({"image": image, "boxes": boxes})
        torch.manual_seed(3)
        out = transform(kinds)
        assert [type(out[name]) for name in kinds] == [type(value) for value in kinds.values()]
        assert torch.equal(out["image"].as_subclass(torch.Tensor), plain["image"])
        corners = tv.convert_bounding_box_format(out["boxes"], new_format="XYXY").as_subclass(torch.Tensor)
        torch.testing.assert_close(corners.clamp(0, 32), plain["boxes"])


def test_the_sample_is_left_as_it_was_and_other_fields_pass() -> None:
    sample = {
        "image": random_image(3, 20, 30),
        "mask": random_image(20, 30),
        "label": 3,
        "name": "a",
        "depth": torch.ones(20, 30),
    }
    before = copy.deepcopy(sample)
    for transform in (train_transform(8), eval_transform(8), Paired(v2.RandomHorizontalFlip(1.0))):
        out = transform(sample)
        assert out.keys() == sample.keys() and out["label"] == 3 and out["name"] == "a"
        assert out["depth"] is sample["depth"] or isinstance(transform, Paired)
        out["image"].zero_()
        out["mask"].zero_()
        assert all(torch.equal(sample[n], before[n]) for n in ("image", "mask", "depth"))


def test_draws_come_from_torchs_global_generator_and_are_the_same_number_for_all() -> None:
    follow = []
    for shape in ((3, 20, 30), (3, 1, 900)):
        torch.manual_seed(5)
        train_transform(8)({"image": random_image(*shape)})
        follow.append(torch.rand(1).item())
    assert follow[0] == follow[1]
    image = random_image(3, 40, 40)
    torch.manual_seed(1)
    one, other = (train_transform(16)({"image": image})["image"] for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(train_transform(16)({"image": image})["image"], one) and not torch.equal(one, other)
    state = torch.get_rng_state()
    eval_transform(16)({"image": image})
    assert torch.equal(torch.get_rng_state(), state)


def test_case_f22_transforms_pickle() -> None:
    sample = {"image": random_image(3, 40, 50)}
    for transform in (train_transform(16, flip=1.0), eval_transform(16), Paired(v2.CenterCrop(16))):
        copied = pickle.loads(pickle.dumps(transform))
        torch.manual_seed(0)
        expected = transform(sample)["image"]
        torch.manual_seed(0)
        assert torch.equal(copied(sample)["image"], expected)
    assert pickle.loads(pickle.dumps(train_transform(16))) == train_transform(16)
    assert len(pickle.dumps(train_transform(16))) < 1000
    assert pickle.loads(pickle.dumps(normalize)) is normalize


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train_transform(0), "size"),
        (lambda: train_transform(8, scale=(0.5, 0.1)), "scale"),
        (lambda: train_transform(8, ratio=(0, 1)), "ratio"),
        (lambda: train_transform(8, flip=1.5), "flip"),
        (lambda: eval_transform(-1), "size"),
        (lambda: eval_transform(8, resize=7), "resize=7"),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_samples_that_do_not_fit() -> None:
    image = random_image(3, 8, 8)
    for transform in (train_transform(4), eval_transform(4)):
        with pytest.raises(ValueError, match=r"'mask' of shape \(8, 9\)"):
            transform({"image": image, "mask": torch.zeros(8, 9)})
        with pytest.raises(ValueError, match=r"'boxes' must be \(N, 4\)"):
            transform({"image": image, "boxes": torch.zeros(4)})
        with pytest.raises(ValueError, match="int32"):
            transform({"image": image.int()})
        with pytest.raises(ValueError, match="no field 'image'"):
            transform({"mask": image})
        with pytest.raises(ValueError, match="no pixels"):
            transform({"image": image[:, :0]})


def test_float_pictures_are_resized_too() -> None:
    image = torch.rand(3, 30, 40)
    expected = tv.center_crop(tv.resize(image, [16], antialias=True), [14, 14])
    torch.testing.assert_close(eval_transform(14)({"image": image})["image"], expected)


# ---- torchvision's pipelines


def test_paired_gives_a_pipeline_mask_and_boxes() -> None:
    image = random_image(3, 10, 20)
    sample = {"image": image, "mask": image[0], "boxes": torch.tensor([[1.0, 2, 5, 6]]), "label": 1}
    pipeline = v2.Compose([v2.RandomHorizontalFlip(0.5)])
    turns = 0
    for seed in range(40):
        torch.manual_seed(seed)
        out = Paired(pipeline)(sample)
        assert {name: type(value) for name, value in out.items()} == {
            name: type(value) for name, value in sample.items()
        }
        assert torch.equal(out["image"][0], out["mask"])
        turned = not torch.equal(out["mask"], image[0])
        assert out["boxes"].tolist() == ([[15.0, 2, 19, 6]] if turned else [[1.0, 2, 5, 6]])
        turns += turned
    assert 8 <= turns <= 32


def test_a_pipeline_of_torchvision_is_a_transform() -> None:
    sample = {"image": as_decoded(random_image(3, 40, 50)), "label": 4, "name": "a/b.jpg"}
    pipeline = v2.Compose([v2.RandomResizedCrop(16), v2.ColorJitter(0.2), v2.ToDtype(torch.float32, scale=True)])
    out = pipeline(sample)
    assert out["image"].shape == (3, 16, 16) and out["label"] == 4 and out["name"] == "a/b.jpg"
    assert normalize_unit(out)["image"].min() >= -1


@pytest.mark.parametrize("half", [np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_numbers_of_numpy_and_torch_are_numbers(half: Any) -> None:
    sample = {"image": torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2)}
    assert normalize(sample, mean=half, std=half)["image"].tolist() == [[[-1.0, 1.0]]]
