"""How runs end: killed, interrupted, left in the middle; and that the next one starts as if nothing had been."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from bestiary.loading import CollateError, Loader, WorkerDied
from loader_datasets import Pictures, Plain

SUPPORT = str(Path(__file__).parent.parent / "support")
PROGRAM = """
    import logging, signal, sys, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    sys.path.insert(0, {support!r})
    import torch
    from loader_datasets import Slow
    from bestiary.loading import Loader

    def chatter():
        while True:
            logging.info("still here")
            time.sleep(0.0001)

    if __name__ == "__main__":
        logging.basicConfig(level=logging.INFO, filename=sys.argv[1])
        threading.Thread(target=chatter, daemon=True).start()
        square = torch.randn(600, 600)
        (square @ square).sum()  # starts the threads of the linear algebra
        loader = Loader(Slow({size}, 0.01), batch_size=2, num_workers=2, seed=1)
        for number, batch in enumerate(loader):
            print(*batch["pid"].tolist(), flush=True)
            if number == 3 and {leave}:
                break
        print("done", flush=True)
"""


def start(tmp_path: Path, size: int = 100_000, leave: bool = False) -> subprocess.Popen[str]:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(PROGRAM.format(support=SUPPORT, size=size, leave=leave)))
    command = [sys.executable, str(script), str(tmp_path / "log.txt")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers_of(process: subprocess.Popen[str]) -> set[int]:
    """Read four batches and return the processes that made them."""
    assert process.stdout is not None
    return {int(part) for _ in range(4) for part in process.stdout.readline().split()}


def all_gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [pid for pid in pids if _alive(pid)]
        if not left:
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shared() -> set[str]:
    """Return what lies in /dev/shm under a name of ours."""
    return {name for name in os.listdir("/dev/shm") if "bestiary" in name} if os.path.isdir("/dev/shm") else set()


def test_case_e28_after_a_kill_the_next_run_starts_and_nothing_is_left(tmp_path: Path) -> None:
    before = shared()
    with start(tmp_path) as killed:
        pids = workers_of(killed)
        assert len(pids) == 2
        killed.kill()
    assert all_gone(pids) and shared() == before
    with start(tmp_path, size=20) as again:
        out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert out.splitlines()[-1] == "done" and len(out.splitlines()) == 11
    assert shared() == before


def test_case_e28_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    both = [start(tmp_path / name, size=40) for name in "ab"]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert [out.splitlines()[-1] for out, _ in told] == ["done", "done"]


@pytest.mark.parametrize("after", [1, 4])
def test_case_f27_ctrl_c_beside_busy_threads(tmp_path: Path, after: int) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        pids = {int(part) for _ in range(after) for part in process.stdout.readline().split()}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode != 0 and "KeyboardInterrupt" in err
    assert all_gone(pids)


def test_case_f27_leaving_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    with start(tmp_path, leave=True) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = out.splitlines()
    assert rows[-1] == "done" and len(rows) == 5
    assert all_gone({int(part) for row in rows[:-1] for part in row.split()})


LOCKED = """
    import gc, os, signal, sys
    sys.path.insert(0, {support!r})
    from multiprocessing.synchronize import Event
    from loader_datasets import Slow
    from bestiary.loading import Loader, WorkerDied

    class Holds(Slow):
        def __getitem__(self, index):
            if index == {last}:
                for event in gc.get_objects():
                    if isinstance(event, Event):  # those that all workers look at
                        event._cond.acquire()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    if __name__ == "__main__":
        try:
            for batch in Loader(Holds(100, 0.0), batch_size=2, num_workers=2, persistent_workers={persistent}):
                pass
        except WorkerDied as error:
            print("told", "killed by SIGKILL" in str(error), flush=True)
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_killed_with_the_lock_of_all_ends_the_pass(tmp_path: Path, persistent: bool) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(LOCKED.format(support=SUPPORT, last=60, persistent=persistent)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["told", "True"], done.stderr


MIXED = """
    import os, sys, warnings
    sys.path.insert(0, {support!r})
    import torch
    from torch.utils.data import get_worker_info
    from loader_datasets import Plain
    from bestiary.loading import Loader, WorkerDied

    class Dies(Plain):
        def __getitem__(self, index):
            if index == 21 and get_worker_info() is not None:
                os._exit(1)
            return index

    def both(samples):
        return {{"parameter": torch.nn.Parameter(torch.eye(3)), "plain": torch.tensor(samples)}}

    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        for _ in range(4):
            try:
                list(Loader(Dies(40), batch_size=2, num_workers=2, collate=both, transport={transport!r}))
            except WorkerDied:
                print("told", flush=True)
"""


@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_a_death_is_told_as_one_whatever_is_under_way(tmp_path: Path, transport: str) -> None:
    """Tensors that travel torch's way are fetched from the worker later, when it may be dead."""
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(MIXED.format(support=SUPPORT, transport=transport)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["told"] * 4, done.stderr


def test_a_worker_killed_between_passes_is_replaced() -> None:
    loader = Loader(Plain(16), batch_size=2, num_workers=2, persistent_workers=True)
    others = set(multiprocessing.active_children())
    before = [batch["index"].tolist() for batch in loader]
    victim = (set(multiprocessing.active_children()) - others).pop()
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join(20)
    time.sleep(0.2)  # the caller's own step goes on
    with pytest.warns(UserWarning, match=r"worker \d .*killed by SIGKILL.* ended between two passes"):
        assert [batch["index"].tolist() for batch in loader] == before
    assert [batch["index"].tolist() for batch in loader] == before


def unsendable(samples: list[Any]) -> dict[str, Any]:
    return {"call": lambda: samples}


def computed(samples: list[Any]) -> dict[str, Any]:
    return {"x": torch.ones(3, requires_grad=True) * 2}


@pytest.mark.parametrize("collate", [unsendable, computed])
@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_a_batch_that_cannot_be_sent_is_told(collate: Any, transport: Any) -> None:
    loader = Loader(Plain(8), batch_size=2, num_workers=1, collate=collate, transport=transport, timeout=30)
    with pytest.raises(CollateError, match="batch 0 of epoch 0 could not be sent to the main process"):
        list(loader)


LEFT_IN_A_CYCLE = """
    import gc, sys, time
    sys.path.insert(0, {support!r})
    from loader_datasets import Plain
    from bestiary.loading import Loader

    if __name__ == "__main__":
        gc.disable()
        for persistent in [False, True] * 5:
            loader = Loader(Plain(2), batch_size=2, num_workers=2, persistent_workers=persistent)
            batches = iter(loader)
            next(batches)  # the only one: the second worker was never sent anything
            cycle = [batches, loader]
            cycle.append(cycle)
            del batches, loader, cycle
            gc.collect()
            time.sleep(0.1)
        print("done")
"""


def test_an_iterator_left_in_a_cycle_ends_without_touching_closed_descriptors(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(LEFT_IN_A_CYCLE.format(support=SUPPORT)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_worker_that_dies_in_the_midst_of_a_message_is_told_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestiary.loading.teams.memory_share", lambda: 1 << 20)  # too little for slots
    loader, told = Loader(Pictures(200), batch_size=16, num_workers=1), []  # 3 MB; the pipe takes 1 MB
    kept, asks = [], threading.Event()

    def loop() -> None:
        batches = iter(loader)
        kept.extend(next(batches) for _ in range(6))  # in messages, of which the next one is half sent
        asks.set()
        time.sleep(1.0)
        try:
            next(batches)
        except WorkerDied as error:
            told.append(str(error))

    before = set(multiprocessing.active_children())
    thread = threading.Thread(target=loop)
    thread.start()
    assert asks.wait(60)
    (worker,) = set(multiprocessing.active_children()) - before
    os.kill(worker.pid or 0, signal.SIGSTOP)
    time.sleep(2.0)  # the thread has read what there is, and waits for the rest
    os.kill(worker.pid or 0, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert len(told) == 1 and "killed by SIGKILL" in told[0] and "had in hand batch 6 of epoch 0" in told[0]


class Hangs(Plain):
    """One sample takes long in a worker, the others no time."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 6 and multiprocessing.parent_process() is not None:
            time.sleep(4)
        return {"index": index}


def test_kept_workers_that_hang_after_a_pass_was_left_are_told() -> None:
    loader = Loader(Hangs(40), batch_size=2, num_workers=2, persistent_workers=True, timeout=1)
    for _ in loader:
        break
    time.sleep(0.2)
    with pytest.raises(WorkerDied, match="timed out.* of the pass before, which was left"):
        next(iter(loader))
    assert next(iter(loader))["index"].tolist() == [0, 1], "the next pass has new workers"


@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_a_stream_whose_batch_cannot_be_sent_says_so(transport: Any) -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    loader = Loader(Numbers(), batch_size=2, num_workers=1, collate=unsendable, transport=transport)
    with pytest.raises(CollateError, match="a batch of epoch 0 could not be sent to the main process"):
        list(loader)


def helper(samples: list[Any]) -> Any:
    return samples[0]["no such key"]


def test_an_error_of_a_collator_comes_with_the_workers_traceback() -> None:
    with pytest.raises(CollateError, match="no such key") as caught:
        list(Loader(Plain(4), batch_size=2, num_workers=1, collate=helper))
    assert 'return samples[0]["no such key"]' in "".join(traceback.format_exception(caught.value))


WITHOUT_MEMORY = """
    import resource, sys, warnings
    sys.path.insert(0, {support!r})
    from loader_datasets import Pictures
    from bestiary.loading import CollateError, Loader

    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))  # holds for shared memory, too
        try:
            list(Loader(Pictures(64), batch_size=16, num_workers=2, transport="torch"))
        except CollateError as error:
            print(error)
"""


def test_too_little_shared_memory_on_torchs_way_is_an_error_and_no_hang(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(WITHOUT_MEMORY.format(support=SUPPORT)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert "batch 0 of epoch 0 could not be sent to the main process" in done.stdout, done.stderr


UNGUARDED = """
    from bestiary.loading import Loader
    list(Loader(list(range(8)), num_workers=1, multiprocessing_context="spawn"))
"""


def test_a_program_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(UNGUARDED))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.splitlines()[-1].endswith('stands below: if __name__ == "__main__":')


AT_THE_END = """
    import sys
    sys.path.insert(0, {support!r})
    from loader_datasets import Plain
    from bestiary.loading import DevicePrefetcher, Loader

    if __name__ == "__main__":
        for persistent in (False, True):
            batches = iter(Loader(Plain(40), batch_size=2, num_workers=2, persistent_workers=persistent))
            ahead = iter(DevicePrefetcher(Loader(Plain(40), batch_size=2, num_workers=2), "cpu"))
            next(batches), next(ahead)
            globals()[f"kept{{persistent}}"] = batches, ahead
        print("done")
"""


def test_a_program_that_ends_in_the_midst_of_a_pass_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(AT_THE_END.format(support=SUPPORT)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
