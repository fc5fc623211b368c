"""To the device: structure, types and sharing are kept."""

from __future__ import annotations

import weakref
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from bestiary.loading import DevicePrefetcher, Loader, pin_memory, to_device

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    image: Tensor
    note: str
    made: Tensor = field(init=False, default_factory=lambda: torch.zeros(1))


@dataclass
class Nested:
    pair: Pair
    inner: Frozen


class Own:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, device: Any) -> Own:
        return Own(self.x.to(device))


class Changing(UserDict[str, Tensor]):
    """Like the batches of transformers: ``to`` changes the object itself."""

    def to(self, device: Any) -> Changing:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class TupleOf(tuple[Any, ...]):
    pass


class ListOf(list[Any]):
    pass


def test_case_f16_structure() -> None:
    shared, values = torch.ones(2), np.ones(2)
    batch: dict[str, Any] = {
        "frozen": Frozen(shared, "a"),
        "nested": Nested(Pair(shared, [torch.zeros(3), "b"]), Frozen(torch.ones(1), "c")),
        "names": ["x", "y"],
        "bytes": b"z",
        "nothing": None,
        "number": 3,
        "deep": {"er": [(shared, None)]},
        "array": values,
    }
    moved: Any = to_device(batch, "meta")
    assert type(moved) is dict
    assert list(moved) == list(batch)
    frozen, nested = moved["frozen"], moved["nested"]
    assert (type(frozen), type(nested), type(nested.pair), type(nested.inner)) == (Frozen, Nested, Pair, Frozen)
    assert frozen.image is nested.pair.left is moved["deep"]["er"][0][0]
    assert frozen.image.device.type == frozen.made.device.type == nested.inner.image.device.type == "meta"
    assert nested.pair.right[0].device.type == "meta"
    assert nested.pair.right[1] == "b"
    assert [moved[name] for name in ("names", "bytes", "nothing", "number")] == [["x", "y"], b"z", None, 3]
    assert moved["array"] is values
    assert shared.device.type == batch["frozen"].image.device.type == "cpu"


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        [torch.ones(2)],
        (torch.ones(2), "a"),
        Pair(torch.ones(2), 1),
        TupleOf([torch.ones(2)]),
        ListOf([torch.ones(2)]),
        OrderedDict(x=torch.ones(2)),
        defaultdict(lambda: torch.zeros(0), x=torch.ones(2)),
        UserDict(x=torch.ones(2)),
        Own(torch.ones(2)),
        Changing(x=torch.ones(2)),
        Frozen(torch.ones(2), "a"),
        pack_sequence([torch.ones(2)]),
    ],
)
def test_type_kept_and_original_left(batch: Any) -> None:
    def tensors(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        if isinstance(value, PackedSequence):
            return [value.data]
        parts = (
            value.values()
            if hasattr(value, "values")
            else value
            if isinstance(value, (list, tuple))
            else vars(value).values()
        )
        return [part for part in parts if isinstance(part, Tensor)]

    moved = to_device(batch, torch.device("meta"))
    assert type(moved) is type(batch)
    assert {part.device.type for part in tensors(moved)} == {"meta"}
    assert {part.device.type for part in tensors(batch)} == {"cpu"}
    assert all(torch.equal(one, two) for one, two in zip(tensors(to_device(batch, "cpu")), tensors(batch), strict=True))


def test_more_of_the_kind() -> None:
    ordered: Any = to_device(defaultdict(lambda: torch.zeros(0), x=torch.ones(1)), "meta")
    assert ordered["y"].shape == (0,)
    assert to_device(MappingProxyType({"x": torch.ones(1)}), "meta")["x"].device.type == "meta"
    assert to_device(None, "meta") is None
    assert to_device("text", "meta") == "text"
    flag = SimpleNamespace(name="a")
    assert to_device({"flag": flag, "set": {1, 2}}, "meta") == {"flag": flag, "set": {1, 2}}


@pytest.mark.parametrize("holder", [SimpleNamespace(x=torch.ones(1)), deque([torch.ones(1)]), {torch.ones(1)}])
def test_hidden_tensors_are_no_secret(holder: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(holder).__name__} holds tensors"):
        to_device({"x": holder}, "meta")


def test_grad_and_non_blocking() -> None:
    x = torch.ones(2, requires_grad=True)
    to_device([x], "cpu", non_blocking=True)[0].sum().backward()
    assert x.grad is not None


def test_case_f16_pinning_keeps_the_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []

    def fake(tensor: Tensor) -> Tensor:  # stands in for an accelerator's pinned memory
        pinned.append(id(tensor))
        return tensor.clone()

    monkeypatch.setattr(Tensor, "pin_memory", fake)
    shared = torch.ones(2)
    batch = {
        "pair": Pair(shared, None),
        "frozen": Frozen(shared, "a"),
        "names": ["x"],
        "meta": torch.ones(1, device="meta"),
    }
    made: Any = pin_memory(batch)
    assert made["pair"].left is made["frozen"].image
    assert made["pair"].left is not shared
    assert (type(made["pair"]), type(made["frozen"]), made["names"]) == (Pair, Frozen, ["x"])
    assert pinned.count(id(shared)) == 1
    assert id(batch["meta"]) not in pinned


def test_what_cannot_be_pinned_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.clone())
    own, hidden = Own(torch.ones(1)), SimpleNamespace(x=torch.ones(1))
    made = pin_memory({"own": own, "hidden": hidden, "x": torch.ones(2)})
    assert (made["own"], made["hidden"]) == (own, hidden)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_loader_pins_what_can_be_where_it_can_be(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's accelerator has no pinned memory, and asking for some is an error there."""
    asked: list[int] = []

    def fake(tensor: Tensor) -> Tensor:
        assert kind != "mps", "pinned memory is not supported"
        asked.append(tensor.numel())
        return tensor.clone()

    monkeypatch.setattr(Tensor, "pin_memory", fake)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    batch = {"hidden": SimpleNamespace(x=torch.ones(1)), "x": torch.ones(5)}
    (got,) = Loader([0, 1], batch_size=2, collate=lambda samples: batch)
    assert got["hidden"] is batch["hidden"]
    assert asked == ([5] if kind == "cuda" else [])
    if kind == "mps":
        monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking: tensor)
        assert len(list(DevicePrefetcher(Loader([0, 1]), "mps"))) == 2


def test_pinning_keeps_the_kind_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[0, 0, 1, 2]]), format="XYXY", canvas_size=(4, 5))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.clone())
    pinned = pin_memory([boxes])[0]
    assert type(pinned) is type(boxes) and pinned is not boxes and torch.equal(pinned, boxes)
    assert (pinned.format, pinned.canvas_size) == (boxes.format, boxes.canvas_size)


def test_what_was_moved_is_free_when_it_is_dropped() -> None:
    x = torch.ones(2)
    gone = weakref.ref(x)
    moved = to_device({"x": [x, (x, None)]}, "meta")
    del x
    assert gone() is None
    gone = weakref.ref(moved["x"][0])
    del moved
    assert gone() is None


class Inner(MutableMapping[str, Any]):
    """A mapping that keeps its values in a dict, which a shallow copy shares."""

    def __init__(self, values: Any = ()) -> None:
        self.inner = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self.inner[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.inner[key] = value

    def __delitem__(self, key: str) -> None:
        del self.inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


def test_the_batch_given_is_left_as_it_was() -> None:
    batch = Inner({"x": torch.zeros(2), "name": "a"})
    moved = to_device(batch, "meta")
    assert type(moved) is Inner and moved["x"].device.type == "meta" and moved["name"] == "a"
    assert batch["x"].device.type == "cpu"


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize(
    "batch", [deque([{"x": torch.zeros(1)}]), Slotted(torch.zeros(1)), SimpleNamespace(xs=[torch.zeros(1)])]
)
def test_hidden_tensors_are_not_left_behind_in_silence(batch: Any) -> None:
    with pytest.raises(TypeError, match="holds tensors but has no method 'to'"):
        to_device({"batch": batch}, "meta")


@dataclass
class Unset:
    x: Tensor
    y: Tensor = field(init=False)


def test_classes_and_unset_fields_stay() -> None:
    moved = to_device({"kind": Tensor, "part": Unset(torch.zeros(1))}, "meta")
    assert moved["kind"] is Tensor
    assert moved["part"].x.device.type == "meta" and not hasattr(moved["part"], "y")
