"""What several tests look at, and do to files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def refused(ran: Any, kind: str, *said: str) -> None:
    """Exit status 2, and the same message on stderr and in the JSON."""
    assert ran.code == 2
    assert set(ran.json) == {"error"}
    assert ran.json["error"]["kind"] == kind
    for words in said:
        assert words in ran.json["error"]["message"]
    assert ran.err == f"error: {ran.json['error']['message']}\n"


def flip(path: Path, tensor: str) -> None:
    """Turn one bit of a stored tensor's first number."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    begin, _ = json.loads(data[8 : 8 + size])[tensor]["data_offsets"]
    data[8 + size + begin] ^= 1
    path.write_bytes(data)


def words(text: str) -> str:
    """The text of a table, however it was folded."""
    return " ".join(text.split())
