"""The loader inside accelerate and Lightning, each with two real processes: every sample comes once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).parent.parent / "support")

ACCELERATE = """
    import sys
    sys.path.insert(0, {support!r})
    from accelerate import Accelerator
    from loader_datasets import Plain, note
    from bestiary.loading import BatchPlan, FixedSize, Loader, Shuffled

    if __name__ == "__main__":
        accelerator = Accelerator(cpu=True)
        plan = BatchPlan(Shuffled(64), FixedSize(4), ends="exact")
        loader = accelerator.prepare(Loader(Plain(64), plan=plan, num_workers=1))
        for batch in loader:
            note({folder!r}, accelerator.process_index, batch["index"])
        accelerator.end_training()
"""

LIGHTNING = """
    import sys
    sys.path.insert(0, {support!r})
    import lightning as L
    import torch
    from loader_datasets import Plain, note
    from bestiary.loading import Loader

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            note({folder!r}, self.global_rank, batch["index"])
            return self.layer(batch["index"].float()[:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    if __name__ == "__main__":
        trainer = L.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir={folder!r},
        )
        trainer.fit(Net(), Loader(Plain(64), batch_size=4, shuffle=True, num_workers=1))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(tmp_path: Path, text: str, *launcher: str) -> list[tuple[int, list[int]]]:
    """Run a script and return what its ranks wrote: rank, indices of a batch."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text.format(support=SUPPORT, folder=str(tmp_path))))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    environment |= {"MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        (rank, [int(index) for index in line.split()])
        for rank in range(2)
        for line in (tmp_path / f"rank{rank}.txt").read_text().splitlines()
    ]


def test_accelerate_with_two_processes_sees_every_sample_once(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate (extra dev)")
    got = run(
        tmp_path, ACCELERATE, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())
    )
    assert {rank for rank, _ in got} == {0, 1}
    assert sorted(index for _, row in got for index in row) == list(range(64))


def test_lightning_ddp_with_two_processes_sees_every_sample_once_an_epoch(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs lightning (extra dev)")
    got = run(tmp_path, LIGHTNING)
    assert {rank for rank, _ in got} == {0, 1}
    assert sorted(index for _, row in got for index in row) == sorted(list(range(64)) * 2)
    first = [row for rank, row in got if rank == 0][:8] + [row for rank, row in got if rank == 1][:8]
    assert sorted(index for row in first for index in row) == list(range(64))
