"""Files elsewhere, copied once into the cache folder: what breaks on the way is tried again, and nothing is lost."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from typing import Any

from bestiary.records.paths import cache_folder, is_url

TRIES = 5  # in a row without a byte more
WAIT_S = 0.05  # before the second try, twice as long before each one after
CHUNK = 1 << 20


def local_copy(path: str) -> str:
    """Return a path in the local file system: the path itself, or that of a copy, which is made when there is none.

    A copy stays, and is not compared with the file elsewhere: give a file that has changed another name, or remove the copy. It is
    written under another name first, so that it is whole or not there.

    Raises:
        OSError: the file cannot be read after several tries; names the URL and the byte.
        ImportError: fsspec, of the extra ``remote``, or what it needs for this kind of URL is missing.
    """
    if not is_url(path):
        return path
    target = os.path.join(cache_folder(), "remote", _name(path))
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        handle, part = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                _copy(path, file)
            os.replace(part, target)
        except BaseException:
            if os.path.exists(part):
                os.unlink(part)
            raise
    return target


def _name(url: str) -> str:
    plain = url.split("?")[0].rstrip("/")
    return f"{hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}-{os.path.basename(plain)}"


def _copy(url: str, file: Any) -> None:
    """Copy all bytes; after a failure go on at the byte that was reached."""
    try:
        import fsspec
    except ImportError:
        raise ImportError(f"{url}: files elsewhere need fsspec: pip install 'bestiary[remote]'") from None
    at, size, tries = 0, None, 0
    while size is None or at < size:
        begun = at
        try:
            system, place = fsspec.core.url_to_fs(url, skip_instance_cache=True)
            size = system.size(place) if size is None else size
            if size is None:  # a server that does not tell: one try reads all
                file.seek(0)
                data = system.cat_file(place)
                file.write(data)
                return
            while at < size:
                data = system.cat_file(place, start=at, end=min(size, at + CHUNK))
                if not data:
                    raise OSError(f"the answer is empty, though the file has {size} bytes")
                if len(data) > min(CHUNK, size - at):  # a server that sends the whole file whatever is asked for
                    data = data[at:] if len(data) == size else data[: min(CHUNK, size - at)]
                file.write(data)
                at += len(data)
        except ImportError:
            raise
        except FileNotFoundError:
            raise FileNotFoundError(f"{url} is not there") from None
        except Exception as error:
            tries = 1 if at > begun else tries + 1
            if tries >= TRIES:
                raise OSError(
                    f"{url} cannot be read at byte {at} of {'unknown' if size is None else size}, after {tries} tries: "
                    f"{type(error).__name__}: {error}"
                ) from error
            time.sleep(WAIT_S * 2 ** (tries - 1))
