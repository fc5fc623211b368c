"""JSON lines: one object a line, ended by a line feed with or without a carriage return before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bestiary.records.faults import fault

if TYPE_CHECKING:
    from bestiary.records.splitting import Cut

MARK = b"\xef\xbb\xbf"  # a byte-order mark, stripped where a file begins


@dataclass(frozen=True)
class JsonForm:
    """How JSON lines are cut and read."""

    kind: ClassVar[Literal["json"]] = "json"
    step: ClassVar[int] = 1 << 19  # bytes of a block in a stream

    @property
    def key(self) -> str:
        """Return what borders depend on."""
        return "json-1"

    def head(self, data: bytes, final: bool) -> int:
        """Return the length of what stands before the records of a file that begins so; -1: more is needed."""
        if len(data) < len(MARK) and not final and MARK.startswith(data):
            return -1
        return len(MARK) if data.startswith(MARK) else 0

    def cut(self, data: bytes, final: bool) -> Cut:
        """Return the records in a text."""
        from bestiary.records.splitting import cut_lines

        return cut_lines(data, final)

    def many(self, lines: Sequence[bytes]) -> list[Any]:
        """Read many lines; any error at all means that they have to be read one by one."""
        records = list(map(loader(), lines))
        if set(map(type, records)) - {dict}:
            raise ValueError("not all of these are objects")
        return records

    def one(self, line: bytes, where: Callable[[], str]) -> dict[str, Any]:
        """Read one line.

        Raises:
            RecordError: it holds no JSON object; names the place.
        """
        try:
            record = loader()(line)
        except ValueError as error:
            raise fault(where(), _what(line, error)) from None
        if not isinstance(record, dict):
            raise fault(where(), f"expected a JSON object, but found {record!r:.80}")
        return record


def _what(line: bytes, error: ValueError) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return f"byte {line[wrong.start]:#04x} at {wrong.start} bytes into the line is not UTF-8 text"
    cut = "" if line.endswith(b"\n") else "; the file ends in this line, so it may be cut"
    return f"no JSON ({error}) in {line[:60]!r}{cut}"


@cache
def loader() -> Callable[[bytes], Any]:
    """Return what reads JSON: orjson, or Python's own where that is missing; both refuse NaN."""
    try:
        import orjson
    except ImportError:
        return _python_json
    loads: Callable[[bytes], Any] = orjson.loads
    return loads


def _python_json(line: bytes) -> Any:
    return json.loads(line.decode("utf-8"), parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
