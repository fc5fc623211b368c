"""What is tried out before the first epoch: the number of workers, and whether shared memory will do."""

from __future__ import annotations

import os
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from bestiary.loading import BatchPlan, FixedSize, Loader, Shuffled
from loader_datasets import Plain


class Sleepy:
    """Samples that take long, and nothing of the processor's time: workers can only help."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"index": index}


class Large(Plain):
    """Samples of 20 MB."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.zeros(20 << 20, dtype=torch.uint8)}


def untouched(samples: Any) -> torch.Tensor:
    """Return 20 MB that nobody has written to, which cost nothing before they are copied."""
    return torch.empty(20 << 20, dtype=torch.uint8)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def auto(*arguments: Any, **options: Any) -> tuple[Loader, str]:
    """Make a loader and return it with what was said."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = Loader(*arguments, num_workers="auto", **options)
    assert len(told) == 1 and told[0].filename == __file__
    return loader, str(told[0].message)


def test_workers_are_taken_where_samples_take_long(two_cores: None) -> None:
    loader, told = auto(Sleepy(100_000, 0.02), batch_size=2, persistent_workers=True)
    assert loader.num_workers == 2
    assert told.startswith("bestiary: num_workers='auto' took 2: ") and "batches/s without workers" in told


def test_none_where_handing_over_costs_more(two_cores: None) -> None:
    loader, told = auto(Plain(100_000), batch_size=1, collate=untouched)
    assert loader.num_workers == 0 and "took 0" in told


class Opens(Plain):
    """Row i of a file that is opened when it is first needed, as many a dataset does; numbers of 7 digits, a line each."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(size)
        path.write_text("".join(f"{number:07}\n" for number in range(size)))
        self.path, self.file = path, None

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115 - kept open
        self.file.seek(8 * index)
        time.sleep(0.001)
        return int(self.file.read(8))


@pytest.mark.parametrize("options", [{"num_workers": "auto"}, {"num_workers": 2, "transport": "torch"}])
@pytest.mark.filterwarnings("ignore:bestiary", "ignore:unclosed file")
def test_a_dataset_that_keeps_its_file_is_not_read_before_workers_are_forked(
    options: dict[str, Any], two_cores: None, tmp_path: Path
) -> None:
    dataset = Opens(tmp_path / "rows.txt", 800)
    loader = Loader(dataset, batch_size=8, multiprocessing_context="fork", **options)
    assert dataset.file is None and loader.num_workers == 2
    assert torch.cat(list(loader)).tolist() == list(range(800))
    assert dataset.file is None, "never read in this process"


def test_none_for_a_short_epoch_and_for_one_core(two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, told = auto(Plain(20), batch_size=4, persistent_workers=True, prefetch_factor=3, timeout=5)
    assert loader.num_workers == 0 and "an epoch takes" in told
    assert len(list(loader)) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "one core" in auto(Sleepy(1000, 0.01), batch_size=2)[1]


def test_trying_changes_neither_batches_nor_epoch(two_cores: None) -> None:
    plan = BatchPlan(Shuffled(64), FixedSize(4), seed=3)
    loader, _ = auto(Plain(64), plan=plan)
    expected = Loader(Plain(64), plan=plan)
    for _ in range(2):
        assert loader.epoch == expected.epoch
        assert [batch["index"].tolist() for batch in loader] == [batch["index"].tolist() for batch in expected]


class Bad(Plain):
    """No sample can be read."""

    def __getitem__(self, index: int) -> Any:
        raise OSError(f"row {index} is damaged")


def test_bad_samples_are_told_by_the_pass(two_cores: None) -> None:
    loader, _ = auto(Bad(1000), batch_size=2)
    with pytest.raises(Exception, match="is damaged"):
        list(loader)


class Stream(IterableDataset[int]):
    """Numbers."""

    def __iter__(self) -> Any:
        return iter(range(10))


def test_a_stream_is_not_tried_out() -> None:
    with pytest.raises(ValueError, match="'auto'.*stream; give a number"):
        Loader(Stream(), batch_size=2, num_workers="auto")


def test_other_words_are_refused() -> None:
    with pytest.raises((ValueError, TypeError), match="num_workers"):
        Loader(Plain(4), num_workers="many")  # type: ignore[arg-type]


# -- shared memory


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's 64 MB of /dev/shm."""
    real = os.statvfs
    fake = SimpleNamespace(f_frsize=4096, f_bsize=4096, f_blocks=16384, f_bfree=16384, f_bavail=16384)
    monkeypatch.setattr(os, "statvfs", lambda path: fake if "shm" in str(path) else real(path))


def test_case_f24_too_little_shared_memory_is_told_before_the_first_epoch(small: None) -> None:
    loader = Loader(Large(8), batch_size=1, num_workers=4, prefetch_factor=2, transport="torch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(loader))
    told = [str(one.message) for one in caught if "bestiary" in str(one.message)]  # torch, too, may say something
    assert len(told) == 1
    assert re.search(r"160 MB.*64 MB.*transport='slots'.*fewer workers.*--shm-size", told[0])


class LargeRows(IterableDataset[dict[str, Any]]):
    """A stream of samples of 20 MB."""

    def __iter__(self) -> Any:
        return iter(Large(3)[number] for number in range(3))


def test_case_f24_of_a_stream_it_is_told_with_the_first_batch(small: None) -> None:
    loader = Loader(LargeRows(), batch_size=1, num_workers=2, prefetch_factor=4, transport="torch")
    with pytest.warns(UserWarning, match=r"160 MB.*64 MB"):
        next(iter(loader))


@pytest.mark.parametrize("options", [{"transport": "slots"}, {"transport": "torch", "prefetch_factor": 1}])
def test_case_f24_no_false_alarm(small: None, options: dict[str, Any]) -> None:
    """Slots need no /dev/shm, and three batches of 20 MB fit there."""
    workers = 4 if options["transport"] == "slots" else 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="bestiary")
        next(iter(Loader(Large(8), batch_size=1, num_workers=workers, **options)))


def notices(told: pytest.WarningsRecorder) -> list[Any]:
    """Return what is no word of Python 3.12 and later about forks."""
    return [one for one in told if issubclass(one.category, UserWarning)]


def test_batches_too_large_for_slots_come_with_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestiary.loading.teams.memory_share", lambda: 32 << 20)
    loader = Loader(Large(4), batch_size=1, num_workers=2)
    with pytest.warns(UserWarning, match=r"batches of 21 MB find no room in slots of shared memory of 3 MB") as told:
        assert [int(batch["x"].sum()) for batch in loader] == [0] * 4
    assert len(notices(told)) == 1


def test_no_shared_memory_left_comes_with_one_notice() -> None:
    """A limit on the size of files holds for memory shared in this way, too."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.warns(UserWarning, match=r"batches of 21 MB find no shared memory left.*messages") as told:
            assert [int(batch["x"].sum()) for batch in Loader(Large(4), batch_size=1, num_workers=2)] == [0] * 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (notice,) = notices(told)
    assert notice.filename == __file__


def sparse(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.eye(3).to_sparse()}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors_tell_no_size_beforehand() -> None:
    loader = Loader(Large(2), batch_size=1, num_workers=1, collate=sparse, transport="torch")
    assert [batch["x"].to_dense().sum().item() for batch in loader] == [3.0, 3.0]


class OfAFolder(Loader):
    """A loader with a signature of its own."""

    def __init__(self, count: int) -> None:
        super().__init__(Large(count), batch_size=1, num_workers="auto")


def test_auto_in_a_subclass_with_a_signature_of_its_own() -> None:
    with pytest.warns(UserWarning, match="num_workers='auto' took"):
        assert len(list(OfAFolder(2))) == 2
