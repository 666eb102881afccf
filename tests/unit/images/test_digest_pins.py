"""Where an image is pulled from: the mirror of the default registry, and the digest that a name is pinned to."""

from pathlib import Path

import pytest
from docker.auth import INDEX_NAME

from sandboxes.images.digest_pins import ImageOrigins
from sandboxes.images.dockerfile import bases

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("org/task:1", "mirror.lan:5000/hub/org/task:1"),
        ("org/task", "mirror.lan:5000/hub/org/task"),
        ("python:3.11", "mirror.lan:5000/hub/library/python:3.11"),
        (f"{INDEX_NAME}/org/task:1", "mirror.lan:5000/hub/org/task:1"),
        ("other.lan/org/task:1", "other.lan/org/task:1"),
        ("localhost:5000/task:1", "localhost:5000/task:1"),
        (f"org/task@{DIGEST}", f"org/task@{DIGEST}"),
        ("x://y", "x://y"),
    ],
)
def test_only_default_registry_is_mirrored(name: str, source: str, tmp_path: Path) -> None:
    assert ImageOrigins.of(tmp_path, "mirror.lan:5000/hub/").source(name) == source
    assert ImageOrigins.of(tmp_path).source(name) == name


def test_pin_persists_and_corrupt_pin_is_ignored(tmp_path: Path) -> None:
    origins = ImageOrigins.of(tmp_path, "mirror.lan")
    origins.note("org/task:1", "no digest")
    assert origins.source("org/task:1") == "mirror.lan/org/task:1"
    origins.note("org/task:1", DIGEST)
    assert ImageOrigins.of(tmp_path).source("org/task:1") == f"org/task@{DIGEST}"
    assert origins.source("org/task:1", anew=True) == "mirror.lan/org/task:1"
    (file,) = (tmp_path / "image-pins").iterdir()
    for content in (b"", b"[]", b'{"image": "other", "digest": "x"}', b"\xff"):
        file.write_bytes(content)
        assert origins.pin("org/task:1") is None


def test_dockerfile_bases_exclude_stages_and_scratch() -> None:
    text = "ARG A=x\nFROM --platform=linux/amd64 org/a:1 AS One\nFROM $A\nFROM one\nFROM scratch\nfrom org/b as two\n"
    assert bases(text + "RUN <<EOF\nFROM inside\nEOF\nFROM org/a:1\n") == ("org/a:1", "org/b")
    assert bases("") == ()
