"""Jagged tensors hold the rows that padding would."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.loading import from_jagged, pad, stack_jagged, to_jagged


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([(), (2,), (2, 3)]))
def test_there_and_back(lengths: list[int], shape: tuple[int, ...]) -> None:
    rows = [torch.rand(*shape, n) for n in lengths]
    padded, counts = pad(rows, -1)
    for nested in (stack_jagged(rows), to_jagged(padded, counts)):
        assert nested.layout == torch.jagged
        assert all(torch.equal(one, other) for one, other in zip(nested.unbind(), rows, strict=True))
        again, lengths_again = from_jagged(nested, -1)
        assert torch.equal(again, padded)
        assert torch.equal(lengths_again, counts)


def test_as_torch_makes_it() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    theirs = torch.nested.nested_tensor(rows, layout=torch.jagged)
    assert torch.equal(stack_jagged(rows).values(), theirs.values())
    assert torch.equal(stack_jagged(rows).offsets(), theirs.offsets())
    assert torch.equal(from_jagged(theirs, 0)[0], theirs.to_padded_tensor(0))


def test_gradient() -> None:
    rows = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    from_jagged(stack_jagged(rows) * 2, 0)[0].sum().backward()
    assert [row.grad.tolist() for row in rows if row.grad is not None] == [[2, 2], [2]]


def test_default_device() -> None:
    rows = [torch.ones(2), torch.ones(1)]
    with torch.device("meta"):
        nested = stack_jagged(rows)
        padded, lengths = from_jagged(nested, 0)
    assert {nested.device.type, padded.device.type, lengths.device.type} == {"cpu"}


def test_errors() -> None:
    with pytest.raises(ValueError, match="^empty batch$"):
        stack_jagged([])
    with pytest.raises(ValueError, match=r"float32.*int64"):
        stack_jagged([torch.ones(2), torch.ones(1).long()])
    with pytest.raises(ValueError, match=r"lengths in \[0, 3\].*\[4, 1\]"):
        to_jagged(torch.ones(2, 3), torch.tensor([4, 1]))
    with pytest.raises(ValueError, match="layout"):
        from_jagged(torch.ones(2, 3), 0)
    with pytest.raises(ValueError, match="last axis"):
        from_jagged(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged), 0)
