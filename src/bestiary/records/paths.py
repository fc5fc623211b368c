"""Which files are meant: one path, a pattern, or several of them, always in sorted order."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"


def list_paths(paths: Paths) -> list[str]:
    """Return the files of one path, pattern or URL, or of several, sorted, so that every machine has the same list.

    Raises:
        ValueError: nothing given, a folder, or a file that comes twice.
        FileNotFoundError: a file is not there, or a pattern fits none.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = sorted(path for one in given for path in _expand(os.fspath(one)))
    if not found:
        raise ValueError("no files were given; give a path, a pattern such as 'rows-*.jsonl', or a list of them")
    twice = [path for path, following in pairwise(found) if path == following]
    if twice:
        raise ValueError(f"{twice[0]} is given twice, so its records would come twice; give each file once")
    return found


def _expand(path: str) -> list[str]:
    path = path.removeprefix("file://")
    if is_url(path):
        return [path]
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; give its files, for instance by the pattern {os.path.join(path, '*')}")
    if os.path.exists(path):
        return [path]
    matches = [match for match in glob.glob(path, recursive=True) if not os.path.isdir(match)]
    matches = [match for match in matches if not match.endswith(".index")]  # an index kept beside its file
    if not matches:
        raise FileNotFoundError(f"{path} is not there, and fits no file as a pattern; look at {_look(path)}")
    return matches


def _look(path: str) -> str:
    folder = os.path.dirname(path) or "."
    return folder if os.path.isdir(folder) else f"{folder}, which is not there either"


def is_url(path: str) -> bool:
    """Whether a path names something elsewhere, such as https://host/rows.jsonl."""
    return "://" in path


def is_pipe(path: str) -> bool:
    """Whether a path can be read only once, from its beginning."""
    if is_url(path):
        return False
    mode = os.stat(path).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def short_names(paths: list[str]) -> list[str]:
    """Return names to speak of files by: below the folder that they share.

    >>> short_names(["/data/a/rows.csv", "/data/b/rows.csv"])
    ['a/rows.csv', 'b/rows.csv']
    """
    local = [path for path in paths if not is_url(path)]
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in local]) if local else ""
    return [path if is_url(path) else Path(os.path.relpath(os.path.abspath(path), folder)).as_posix() for path in paths]


def cache_folder(folder: str | os.PathLike[str] | None = None) -> str:
    """Return the folder for what can be made again: the one given, else bestiary's below the user's cache folder."""
    if folder is not None:
        return os.path.expanduser(os.fspath(folder))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "bestiary")


def packing_of(path: str) -> str:
    """Return how a file is packed, by its name: "gzip", "zstd", or "" where it is plain.

    >>> packing_of("rows.jsonl.gz"), packing_of("rows.jsonl")
    ('gzip', '')
    """
    ending = os.path.splitext(path.lower())[1]
    return {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".zstd": "zstd"}.get(ending, "")


def random_access(paths: list[str]) -> list[str]:
    """Return the paths, if their files can be read at any place.

    Raises:
        ValueError: a file is packed, or a pipe.
    """
    for path in paths:
        if packing_of(path) or is_pipe(path):
            raise ValueError(
                f"{path} can only be read from its beginning on, so its records have no index; unpack it, or take RecordStream"
            )
    return paths
