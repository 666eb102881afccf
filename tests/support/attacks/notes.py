"""Leave a note in a directory of an image by names that are looked up, and read one by the time that lookups take.

usage: python3 notes.py leave|read TOKEN BITS-or-count

Each bit has two groups of names, of which the writer looks up one. The reader looks up both in turn: names that were
looked up before are found not to exist in less time.
"""

import contextlib
import os
import sys
import time

PLACES = ("/var/lib/dpkg/info", "/usr/bin", "/.farm")
NAMES = 12


def name(place: str, token: str, bit: int, group: int, number: int) -> str:
    return f"{place}/{token}-{bit}-{group}-{number}"


def look_up(path: str) -> int:
    """Return the nanoseconds that it took."""
    begun = time.perf_counter_ns()
    with contextlib.suppress(OSError):
        os.stat(path)
    return time.perf_counter_ns() - begun


def leave(place: str, token: str, bits: str) -> None:
    for at, bit in enumerate(bits):
        for number in range(NAMES):
            look_up(name(place, token, at, int(bit), number))


def read(place: str, token: str, count: int) -> str:
    for number in range(500):
        look_up(f"{place}/{token}-first-{number}")
    found = ""
    for bit in range(count):
        pairs = [[look_up(name(place, token, bit, group, number)) for group in (0, 1)] for number in range(NAMES)]
        zero, one = (sorted(column)[NAMES // 2] for column in zip(*pairs, strict=True))
        found += "1" if one < zero else "0"
    return found


if __name__ == "__main__":
    if sys.argv[1] == "leave":
        for where in PLACES:
            leave(where, sys.argv[2], sys.argv[3])
    else:
        print(" ".join(read(where, sys.argv[2], int(sys.argv[3])) for where in PLACES))
