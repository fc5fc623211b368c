"""A run in one file, written so that it can be killed at any time and goes on as if it had not been.

Layout::

    checkpoint.pt    one dict of plain values and tensors, readable with ``torch.load(..., weights_only=True)``
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bestiary.keys import rank_and_world
from bestiary.tools.ranks import agreed, gathered
from bestiary.tools.run import Metrics, generator_states, restore_generators


class Checkpoint:
    """All that a run needs to go on, saved from time to time.

    Args:
        path: the file.
        parts: by name, whatever has ``state_dict`` and ``load_state_dict``: model, optimiser, schedule, loader.
        about: plain values without which the parts mean nothing, such as the classes; they have to be the same when the
            run goes on.
        every_steps: steps between two saves; 0 counts no steps.
        every_s: seconds between two saves, by the clock of rank 0.

    Attributes:
        seconds: how long the run has taken, what came before it was interrupted included.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        parts: Mapping[str, Any],
        about: Mapping[str, Any],
        *,
        every_steps: int = 0,
        every_s: float = 30.0,
    ) -> None:
        self.path, self.parts, self.about = Path(path), dict(parts), dict(about)
        self.every_steps, self.every_s = every_steps, every_s
        self._begin = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begin

    def begin(self, resume: bool, at: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the run begins: with ``resume`` where it was saved last, else, or where nothing was, ``at``.

        Rank 0 says which. Without ``resume`` it removes the checkpoint of an earlier run, from which a later one would go on.

        Raises:
            ValueError: what ``load`` raises.
        """
        there, told, begun = self.path.exists(), "", dict(at)
        if resume and there:
            begun = self.load()
            told = f"going on from {self.path}, saved in epoch {begun['epoch'] + 1} after step {begun['step']}"
        elif resume:
            told = f"there is no {self.path} to go on from; this run begins at the start"
        elif there:
            told = f"{self.path} is of an earlier run, and is replaced"
        if rank_and_world()[0] == 0 and told:
            print(told, file=sys.stderr, flush=True)
            if not resume:
                self.path.unlink()
        return begun

    def due(self, step: int, device: torch.device) -> bool:
        """Tell, alike on every rank, whether it is time to save after so many steps."""
        counted = self.every_steps > 0 and step % self.every_steps == 0
        return agreed(counted or time.monotonic() - self._saved >= self.every_s, device)

    def save(self, at: Mapping[str, Any], metrics: Metrics) -> None:
        """Write where the run is: its parts, the generators of every rank, the place in the metrics, and ``at``.

        Every rank calls it, and rank 0 writes.
        """
        generators = gathered(generator_states())
        if rank_and_world()[0] == 0:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            state |= {"at": dict(at) | {"seconds": self.seconds, "metrics": metrics.place()}}
            save_checkpoint(self.path, state | {"about": self.about, "generators": generators})
        self._saved = time.monotonic()

    def load(self) -> dict[str, Any]:
        """Bring the parts and the generators back to where the file was written, and return ``at``.

        It also has ``seconds``, and ``metrics``, the number of bytes of the metrics file that had been written.

        Raises:
            OSError: there is no such file.
            ValueError: it is damaged, or belongs to another run; what differs is named.
        """
        state = load_checkpoint(self.path)
        try:
            for name, ours in self.about.items():
                if state["about"][name] != ours:
                    theirs = state["about"][name]
                    raise ValueError(f"it was made with {name} {theirs!r:.150}, this run has {ours!r:.150}")
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            told = f"{self.path} does not fit this run: {error}"
            raise ValueError(f"{told}; give the options that it was made with, or another folder") from error
        rank, _ = rank_and_world()
        if rank < len(state["generators"]):
            restore_generators(state["generators"][rank])
        at: dict[str, Any] = state["at"]
        self._begin -= at["seconds"]
        return at


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a dict; whoever reads ``path`` finds the old one or the new one, whole, even after a power cut."""
    draft = f"{os.fspath(path)}.tmp"
    with open(draft, "wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    if os.name == "posix":  # the new name, too, has to reach the disk
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a dict to the CPU; nothing in the file is executed.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged or no checkpoint.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # damaged files raise whatever zip and pickle raise
        text = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path} cannot be read as a checkpoint ({text}); remove it to start anew") from error
    if isinstance(state, dict):
        return state
    raise ValueError(f"{path} holds a {type(state).__name__}, no checkpoint; remove it to start anew")
