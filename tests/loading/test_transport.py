"""Batches from workers: the same bit for bit as made here, whatever their structure, and safe to keep."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, get_worker_info

from bestiary.loading import Collate, CollateError, Loader
from loader_datasets import Pictures, Plain, Structures, structure


def same(left: Any, right: Any) -> bool:
    """Tell whether two batches are equal bit for bit: types, dtypes, shapes and values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and torch.equal(flat(left), flat(right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dataclass_fields__"):
        return same(vars(left), vars(right))
    return bool(left == right)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_every_structure_arrives_as_it_was_made(method: str, transport: Any) -> None:
    here = list(Loader(Structures(24), batch_size=4, collate=structure))
    crew = Loader(
        Structures(24),
        batch_size=4,
        collate=structure,
        num_workers=2,
        multiprocessing_context=method,
        transport=transport,
    )
    assert same(list(crew), here)


tv_tensors = pytest.importorskip("torchvision.tv_tensors")
leaves = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.integers(-5, 5),
    st.tuples(
        st.sampled_from(
            [
                torch.uint8,
                torch.int32,
                torch.int64,
                torch.float16,
                torch.bfloat16,
                torch.float32,
                torch.float64,
                torch.bool,
                torch.complex64,
            ]
        ),
        st.lists(st.integers(0, 5), max_size=3),
        st.booleans(),
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@given(tree=trees, large=st.booleans())
@settings(deadline=None, max_examples=150)
def test_packing_and_unpacking_any_tree(tree: Any, large: bool) -> None:
    """The two ends of the way, in one process: in the message and in a slot."""
    from bestiary.loading.desk import Desk
    from bestiary.loading.fetch import Fetched
    from bestiary.loading.parcels import Parcel, pack, unpack
    from bestiary.loading.slots import Slots

    slots = Slots(1, 1, 1 << 24)
    batch = [grown(tree), torch.arange(1 << 17)] if large else grown(tree)
    slot = slots.lend(0)
    parcel = pack(Fetched(batch, 1, [], None, 0.0), Desk(slots, slot))
    assert isinstance(parcel, Parcel) and (parcel.slot == slot) == large
    assert same(unpack(parcel, slots.receive(slot, parcel.end) if large else None).batch, batch)


def grown(tree: Any) -> Any:
    """Turn the (dtype, shape, transposed) leaves of a tree into tensors."""
    if isinstance(tree, tuple) and len(tree) == 3 and isinstance(tree[0], torch.dtype):
        dtype, shape, turned = tree
        made = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
        return made.transpose(0, -1) if turned and len(shape) > 1 else made
    if isinstance(tree, list):
        return [grown(part) for part in tree]
    if isinstance(tree, tuple):
        return tuple(grown(part) for part in tree)
    if isinstance(tree, dict):
        return {key: grown(part) for key, part in tree.items()}
    return tree


def test_batches_that_are_kept_stay_as_they_are() -> None:
    """More batches than slots, all kept: every one holds what it was made of, to the end."""
    kept = list(Loader(Pictures(40), batch_size=2, num_workers=2))
    for number, batch in enumerate(kept):
        assert batch["image"].shape == (2, 3, 256, 256)
        for row, image in enumerate(batch["image"]):
            assert torch.equal(image, torch.full_like(image, (2 * number + row) % 251))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_beyond_the_slots_have_memory_of_their_own(method: str) -> None:
    """As many as there is memory for: no descriptor stays with them, and when they are dropped nothing does."""
    loader, before = Loader(Pictures(200), batch_size=2, num_workers=1, multiprocessing_context=method), descriptors()
    kept = list(loader)
    own = Path("/proc/self/maps").read_text().count("bestiary-spare")
    assert own >= 100 - 5
    assert descriptors() <= before + 20  # the slots, each mapped, and nothing for the other 95
    assert [batch["image"][1, 2, 255, 255].item() for batch in kept] == [(2 * n + 1) % 251 for n in range(100)]
    kept.clear()
    assert "bestiary-spare" not in Path("/proc/self/maps").read_text()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_where_a_worker_cannot_open_a_spare_the_batch_comes_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestiary.loading.spares.Spares.lend", lambda self: None)
    kept = list(Loader(Pictures(80), batch_size=2, num_workers=1))
    assert [batch["image"][1, 2, 255, 255].item() for batch in kept] == [(2 * n + 1) % 251 for n in range(40)]


def test_batches_that_are_written_to_do_not_touch_others() -> None:
    for number, batch in enumerate(Loader(Pictures(40), batch_size=2, num_workers=1)):
        assert batch["image"][0].unique().tolist() == [2 * number % 251]
        batch["image"].fill_(255)


def test_a_view_of_a_batch_keeps_its_memory() -> None:
    rows = [batch["image"][1, 0, 5] for batch in Loader(Pictures(40), batch_size=2, num_workers=1)]
    assert [row.unique().tolist() for row in rows] == [[(2 * n + 1) % 251] for n in range(20)]


def test_kept_batches_of_this_process_stay_as_they_are() -> None:
    kept = list(Loader(Pictures(16), batch_size=2))
    assert [batch["image"][0].unique().tolist() for batch in kept] == [[2 * n] for n in range(8)]


class Arrays(Plain):
    """Pictures of 192 kB as numpy arrays."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.full((3, 256, 256), index, np.uint8)}


class Named(Collate):
    """A collator that adds nothing."""


@pytest.mark.parametrize(("dataset", "collate"), [(Arrays(40), None), (Pictures(40), Named())])
def test_arrays_too_are_collated_into_memory_that_was_used(dataset: Any, collate: Any) -> None:
    places = set()
    for number, batch in enumerate(Loader(dataset, batch_size=2, collate=collate)):
        assert batch["image"][:, 0, 0, 0].tolist() == [2 * number, 2 * number + 1]
        places.add(batch["image"].data_ptr())
    assert len(places) <= 3, "fresh memory would lie at more places, or would have to be touched anew"


def test_the_bound_of_the_report_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is no multiple of what slots grow by, and several passes may be under way."""
    for place in ("teams", "workers"):
        monkeypatch.setattr(f"bestiary.loading.{place}.memory_share", lambda: 7 << 20)
    loader = Loader(Pictures(160), batch_size=7, num_workers=1)  # 1.3 MB
    running = [iter(loader) for _ in range(3)]
    for batches in running:
        for _ in range(8):
            next(batches)
        report = loader.report()
        assert 0 < report.held_bytes <= report.most_bytes
    assert 7 << 20 < report.held_bytes and report.most_bytes <= 3 * (7 << 20)


def test_channels_last_stays() -> None:
    first = next(iter(Loader(Structures(4), batch_size=4, collate=structure, num_workers=1)))
    assert first["last"].is_contiguous(memory_format=torch.channels_last)


def test_shared_tensors_stay_shared() -> None:
    first = next(iter(Loader(Structures(4), batch_size=4, collate=structure, num_workers=1)))
    assert first["again"] is first["image"]


def test_nothing_named_is_left_in_shared_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    running = iter(Loader(Pictures(40), batch_size=2, num_workers=2))
    next(running)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "bestiary" in name}
    del running


def test_slots_are_closed_with_their_loader() -> None:
    def open_slots() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum("bestiary-slot" in os.readlink(link) for link in links if link.is_symlink())

    gc.collect()
    before = open_slots()
    loader = Loader(Pictures(8), batch_size=2, num_workers=2)
    batches = list(loader)
    assert open_slots() > before
    del loader
    gc.collect()
    assert [batch["image"][0, 0, 0, 0].item() for batch in batches] == [0, 2, 4, 6]
    del batches
    gc.collect()
    assert open_slots() == before


def test_case_f25_many_kept_batches_need_few_descriptors() -> None:
    """Six tensors in each of 1,000 kept batches, under a limit of 256 open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        kept = list(Loader(Structures(1000), batch_size=1, collate=six_tensors, num_workers=2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [batch["2"].item() for batch in kept] == [2 * n for n in range(1000)]


def six_tensors(samples: list[int]) -> dict[str, torch.Tensor]:
    return {str(factor): torch.tensor([factor * sample for sample in samples]) for factor in range(6)}


def test_same_batches_as_torchs_own_loader() -> None:
    theirs = list(DataLoader(Pictures(10), batch_size=3, num_workers=1))  # type: ignore[arg-type]
    ours = list(Loader(Pictures(10), batch_size=3, num_workers=1))
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(theirs, ours, strict=True))


class Labelled(Plain):
    """Sample i is a picture of 1.5 MB and the label i."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((3, 512, 1024), index % 251, dtype=torch.uint8), "label": index}


def private_bytes() -> int:
    """Return what this process has for itself."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


@pytest.mark.parametrize("hoard", [0, 40])
def test_kept_labels_do_not_keep_their_pictures(hoard: int) -> None:
    """What torch's loader gives, too; also when kept batches have taken all slots, and others have memory of their own."""
    loader = Loader(Labelled(360), batch_size=2, num_workers=2)
    kept, labels, before = [], [], 0
    for number, batch in enumerate(loader):
        if number < hoard:
            kept.append(batch)
        if number == max(hoard, 20):
            before = private_bytes()
        labels.append(batch["label"])
    assert [label.tolist() for label in labels] == [[2 * n, 2 * n + 1] for n in range(180)]
    grown = private_bytes() - before
    assert grown < 60e6, f"{grown / 1e6:.0f} MB more, of 420 MB that came meanwhile"
    assert loader.report().held_bytes <= (5 * 2) * (4 << 20)
    assert all(
        torch.equal(batch["image"][0], torch.full((3, 512, 1024), 2 * n, dtype=torch.uint8))
        for n, batch in enumerate(kept)
    )


def test_labels_of_small_batches_hold_no_slot() -> None:
    """Several batches share a slot; the rows lie in it, the labels do not."""
    batches = list(Loader(Short(400), batch_size=4, num_workers=2))
    assert [batch["label"].tolist() for batch in batches] == [[4 * n + row for row in range(4)] for n in range(100)]
    assert any(in_a_slot(batch["row"]) for batch in batches)
    assert not any(in_a_slot(batch["label"]) for batch in batches)


def in_a_slot(tensor: torch.Tensor) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(part, 16) for part in line.split()[0].split("-")] for line in lines if "bestiary-slot" in line]
    return any(start <= tensor.data_ptr() < stop for start, stop in spans)


class Short(Plain):
    """Sample i is a row of 10 kB and the label i."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": torch.full((10_000,), index % 251, dtype=torch.uint8), "label": index}


def test_batches_of_this_process_use_two_blocks_again_and_again() -> None:
    loader = Loader(Pictures(160), batch_size=4)
    for _ in loader:
        pass
    assert loader.report().held_bytes == 2 * 4 * 3 * 256 * 256


class Refilled:
    """A collator that returns the same list each time."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, samples: list[int]) -> dict[str, Any]:
        self.names[:] = [f"{sample}" for sample in samples]
        return {"name": self.names, "x": torch.tensor(samples)}


def test_a_list_that_the_collator_refills_is_taken_as_it_was() -> None:
    """Of batches that ride together each one is made before any is sent."""
    for batch in Loader(Structures(400), batch_size=2, collate=Refilled(), num_workers=2):
        assert batch["name"] == [str(value) for value in batch["x"].tolist()]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_many_batches_ahead_need_no_more_descriptors_than_there_are(method: str) -> None:
    loader = Loader(Structures(8), batch_size=2, num_workers=2, prefetch_factor=128, multiprocessing_context=method)
    assert [int(value) for batch in loader for value in batch] == list(range(8))


def eye(index: int) -> torch.Tensor:
    return torch.eye(700).to_sparse()


class Noted(torch.Tensor):
    """A tensor with a name."""


def of_all_kinds(samples: list[Any]) -> dict[str, torch.Tensor]:
    number, eye = float(samples[0]["index"]), torch.eye(4)
    noted = torch.full((3,), number).as_subclass(Noted)
    noted.note = f"number {number:g}"
    return {
        "image": tv_tensors.Image(torch.full((3, 300, 300), int(number), dtype=torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(torch.tensor([[0, 0, 1, int(number)]]), format="XYWH", canvas_size=(4, 5)),
        "mask": tv_tensors.Mask(torch.zeros(1, 4, 4)),
        "noted": noted,
        "leaf": torch.full((3,), number, requires_grad=True),
        "noted leaf": torch.full((3,), number).as_subclass(Noted).requires_grad_(),
        "parameter": torch.nn.Parameter(torch.full((3,), number)),
        "coordinates": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, number], (4,)),  # two at one place
        "sparse leaf": eye.to_sparse().requires_grad_(),
        "empty": torch.zeros(0, 3).to_sparse(),
        "csr": eye.to_sparse_csr(),
        "csc": eye.to_sparse_csc(),
        "bsr": eye.to_sparse_bsr((2, 2)),
        "bsc": eye.to_sparse_bsc((2, 2)),
    }


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return all that makes a tensor what it is."""
    coalesced = tensor.layout == torch.sparse_coo and tensor.is_coalesced()
    values = (tensor.detach().to_dense() if tensor.layout != torch.strided else tensor).tolist()
    made = type(tensor), tensor.dtype, tensor.layout, tuple(tensor.shape), tensor.requires_grad, tensor.is_leaf
    return *made, coalesced, values, {key: getattr(tensor, key, None) for key in ("format", "canvas_size", "note")}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_all_kinds_arrive_as_they_were_made(workers: int) -> None:
    batches = list(Loader(Plain(6), batch_size=1, num_workers=workers, collate=of_all_kinds))
    for number, batch in enumerate(batches):
        made = of_all_kinds([{"index": number}])
        assert batch.keys() == made.keys()
        for key in made:
            assert described(batch[key]) == described(made[key]), key


def with_descriptors(samples: list[Any]) -> dict[str, Any]:
    return {
        "open": len(os.listdir("/proc/self/fd")),
        "x": torch.eye(3).to_sparse(),
        "y": torch.ones(2, requires_grad=True),
    }


@pytest.mark.filterwarnings("ignore:Sparse")
def test_passes_that_are_left_leave_no_descriptors_in_kept_workers() -> None:
    loader = Loader(Plain(40), batch_size=1, num_workers=1, persistent_workers=True, collate=with_descriptors)
    counts = [next(iter(loader))["open"] for _ in range(10)]
    assert max(counts[1:]) <= counts[1]


def quantized(index: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.full((700, 700), float(index)), 1.0, 0, torch.quint8)


class Odd(Plain):
    """Large samples of kinds that cannot be stacked into memory made for them."""

    def __init__(self, size: int, make: Any) -> None:
        super().__init__(size)
        self.make = make

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.make(index)}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("workers", [0, 1])
def test_large_sparse_samples_are_stacked(workers: int) -> None:
    for batch in Loader(Odd(4, eye), batch_size=2, num_workers=workers):
        assert torch.equal(batch["x"].to_dense(), torch.stack([torch.eye(700)] * 2))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_large_quantized_samples_are_stacked_as_small_ones() -> None:
    expected = torch.stack([quantized(0), quantized(1)])
    (batch,) = Loader(Odd(2, quantized), batch_size=2)
    assert torch.equal(batch["x"].int_repr(), expected.int_repr())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_nested_tensors_arrive(transport: Any) -> None:
    (batch,) = Loader(Plain(2), batch_size=2, num_workers=1, collate=nested, transport=transport)
    assert [part.tolist() for part in batch.unbind()] == [[0.0], [0.0, 0.0]]


def nested(samples: list[Any]) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(one["index"] + 1) for one in samples])


class WithoutDescriptors(Pictures):
    """Pictures of a worker that may open no further file."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        import resource

        if get_worker_info() is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        return super().__getitem__(index)


def test_without_descriptors_for_a_slot_a_batch_comes_in_the_message() -> None:
    batches = Loader(WithoutDescriptors(8), batch_size=2, num_workers=1, multiprocessing_context="fork")
    assert [batch["image"][0, 0, 0, 0].item() for batch in batches] == [0, 2, 4, 6]


class Parts(Plain):
    """Rows that each are a tensor of its own, as a fork server has to pass on."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.parts = [torch.full((2,), number) for number in range(size)]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.parts[index]


def test_a_fork_server_without_descriptors_for_slots_does_without_them() -> None:
    loader = Loader(Parts(240), batch_size=20, num_workers=2, multiprocessing_context="forkserver")
    with pytest.warns(UserWarning, match="no slots of shared memory .too many fds.; large batches travel in messages"):
        batches = list(loader)
    assert torch.cat(batches)[:, 0].tolist() == list(range(240))


def hidden_mark(samples: list[Any]) -> Any:
    return SimpleNamespace(x=torch.ones(2, dtype=torch.complex64).conj())


def test_a_mark_that_torchs_way_would_forget_is_told() -> None:
    with pytest.raises(CollateError, match=r"conjugated or negated by a mark alone; resolve_conj\(\) it"):
        list(Loader(Plain(2), batch_size=2, num_workers=1, collate=hidden_mark, transport="torch"))
    (batch,) = Loader(Plain(2), batch_size=2, num_workers=1, collate=hidden_mark)
    assert batch.x.tolist() == [1, 1]
