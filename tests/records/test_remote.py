"""Files on a server that misbehaves: tried again, with a bound, and nothing lost."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bestiary.records import JsonLines, RecordStream

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
DATA = b"".join(json.dumps({"id": i, "text": "x" * 50}).encode() + b"\n" for i in range(3000))


class Moody(BaseHTTPRequestHandler):
    """Serves ``DATA`` with ranges; what goes wrong is a list of moods, one a request for data."""

    moods: ClassVar[list[str]] = []
    asked = 0

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def _answer(self, head: bool) -> None:
        kind = type(self)
        if self.path != "/rows.jsonl":
            self.send_error(404)
            return
        given = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        mood = ""
        if not head:
            kind.asked += 1
            mood = kind.moods.pop(0) if kind.moods else ""
        if mood == "busy":
            self.send_error(503)
            return
        start = int(given[1]) if given else 0
        stop = min(int(given[2]) + 1 if given and given[2] else len(DATA), len(DATA))
        part = DATA[start:stop]
        self.send_response(206 if given else 200)
        if given:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(DATA)}")
        self.send_header("Accept-Ranges", "bytes")
        if mood == "short":  # an honest length of less than was asked for
            part = part[: len(part) // 2]
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if head:
            return
        if mood == "drop":  # fewer bytes than promised, and the line is cut
            self.wfile.write(part[: len(part) // 3])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("bestiary.records.remote.WAIT_S", 0.001)
    monkeypatch.setattr("bestiary.records.remote.CHUNK", 50_000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    Moody.moods, Moody.asked = [], 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/rows.jsonl"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("moods", [[], ["busy"], ["drop"], ["short"], ["busy", "drop", "short"] * 3])
def test_every_record_comes_whatever_happens_on_the_way(url: str, moods: list[str]) -> None:
    Moody.moods = list(moods)
    stream = RecordStream(url)
    assert [row["id"] for row in stream] == list(range(3000))
    asked = Moody.asked
    assert [row["id"] for row in RecordStream(url)] == list(range(3000)) and Moody.asked == asked, "it is cached"
    assert JsonLines(url)[2999]["id"] == 2999 and url in JsonLines(url).locate(7)


def test_after_several_tries_the_error_names_url_and_byte(url: str, tmp_path: Path) -> None:
    Moody.moods = ["", "", *["busy"] * 50]
    with pytest.raises(OSError, match=rf"{re.escape(url)} cannot be read at byte 100000 of {len(DATA)}, after 5 tries"):
        len(JsonLines(url))
    assert not list((tmp_path / "cache" / "bestiary" / "remote").iterdir()), "no half copy is left"
    Moody.moods = []
    assert len(JsonLines(url)) == 3000


def test_readers_share_a_copy(url: str) -> None:
    stream = RecordStream(url)
    stream.prepare(3, 0, 0)
    found = [row["id"] for k in range(3) for row in stream.open(k, 3, 0, 0)]
    assert sorted(found) == list(range(3000))


def test_what_is_not_there_says_so(url: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl is not there"):
        len(JsonLines(url.replace("rows", "none")))
