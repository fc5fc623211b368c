"""Tensors that are more than numbers one behind the other, taken apart into such and put together again.

A subclass, such as torchvision's tv_tensors; one that requires grad; a sparse one. The parts go where other tensors go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
Recipe = tuple[Callable[..., Tensor], tuple[Any, ...]]


def taken_apart(tensor: Tensor) -> Recipe | None:
    """Return a function and arguments, among them plainer tensors, that make a CPU tensor anew; None where torch knows better.

    None, too, for a tensor that was computed from others with a gradient, which no process can send.
    """
    kind = type(tensor)
    if tensor.device.type != "cpu" or (tensor.requires_grad and not tensor.is_leaf):
        return None
    if kind is not Tensor:
        return _of_a_kind(tensor) if is_named_tensor(kind) else None
    if tensor.requires_grad:
        return _requiring_grad, (tensor.detach(),)
    if tensor.layout == torch.sparse_coo:
        return _coordinates, (*strided_parts(tensor), tuple(tensor.shape), tensor.is_coalesced())
    if tensor.layout in COMPRESSED:
        return _compressed, (*strided_parts(tensor), tuple(tensor.shape), tensor.layout)
    return None


def strided_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that hold a sparse one's numbers; any other tensor itself."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def is_named_tensor(kind: type) -> bool:
    """Tell whether a subclass is a tensor with a name and attributes, and is pickled like one."""
    own = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__torch_dispatch__", "__slots__")
    return not any(name in base.__dict__ for base in kind.__mro__[: kind.__mro__.index(Tensor)] for name in own)


def pinned(tensor: Tensor) -> Tensor:
    """Return a CPU tensor in pinned memory, of the same kind; any other as it is."""
    if tensor.device.type != "cpu":
        return tensor
    if type(tensor) is Tensor or not is_named_tensor(type(tensor)):
        return tensor.pin_memory()
    with torch._C.DisableTorchFunctionSubclass():  # a subclass would forget its kind
        plain = tensor.pin_memory()
        if plain is tensor:
            return tensor
        plain = plain.as_subclass(Tensor)
    return _made_a_kind(plain, type(tensor), tensor.__dict__, requires_grad=False)


def _of_a_kind(tensor: Tensor) -> Recipe:
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(Tensor)
    return _made_a_kind, (plain, type(tensor), dict(tensor.__dict__), tensor.requires_grad)


def _made_a_kind(plain: Tensor, kind: type[Tensor], attributes: dict[str, Any], requires_grad: bool) -> Tensor:
    made = plain.as_subclass(kind)
    made.__dict__.update(attributes)
    return made.requires_grad_() if requires_grad else made


def _requiring_grad(plain: Tensor) -> Tensor:
    return plain.requires_grad_()


def _coordinates(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _compressed(first: Tensor, second: Tensor, values: Tensor, shape: tuple[int, ...], layout: torch.layout) -> Tensor:
    return torch.sparse_compressed_tensor(first, second, values, shape, layout=layout, check_invariants=False)
