"""Keys and ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.keys import mix, rank_and_world


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 50)), unique=True, min_size=2, max_size=40))
def test_keys_of_different_parts_differ(pairs: list[tuple[int, int]]) -> None:
    assert len({mix(seed, epoch) for seed, epoch in pairs}) == len(pairs)


def test_keys_are_the_same_in_another_process() -> None:
    code = "from bestiary.keys import mix; print(mix('order', 3, 7))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == mix("order", 3, 7)


def test_names_that_are_no_valid_text_have_keys() -> None:
    assert mix("\udcff") != mix("\udcfe")


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_rank_comes_from_arguments_then_environment_then_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_and_world() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rank_and_world() == (2, 3)
    assert rank_and_world(0, 5) == (0, 5)


def test_half_a_rank_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rank=1 and world_size=None"):
        rank_and_world(1)
    with pytest.raises(ValueError, match="rank=3 and world_size=3"):
        rank_and_world(3, 3)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="world_size=None"):
        rank_and_world()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="WORLD_SIZE.*'many'"):
        rank_and_world()


def test_rank_of_a_process_group() -> None:
    code = (
        "import torch.distributed as d; d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1);"
        "from bestiary.keys import rank_and_world; print(rank_and_world())"
    )
    environment = {"RANK": "1", "WORLD_SIZE": "2"}
    import os

    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    assert out.stdout.strip() == "(0, 1)"
