"""The libraries of the page: ``python -m tests.support.page.vendored`` takes them from the npm registry again.

``versions.json`` beside them names each package, its version and its licence, and of each file the path in the package,
the SHA-256 as it is stored, and what is replaced in it: a module of a package may import another one only by its place.
"""

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parents[3] / "farm/gateway/page/vendor"


def described() -> dict[str, Any]:
    """Return ``versions.json``."""
    found: dict[str, Any] = json.loads((VENDOR / "versions.json").read_text())
    return found


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def take(directory: Path) -> dict[str, bytes]:
    """Return the files by their names, from packages that npm fetches into ``directory``."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is missing; install it (Debian: apt-get install npm), then run this again")
    taken = {}
    for package, facts in described().items():
        command = [npm, "pack", "--silent", f"{package}@{facts['version']}"]
        name = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()
        with tarfile.open(directory / name) as archive:
            for file, entry in facts["files"].items():
                member = archive.extractfile(f"package/{entry['from']}")
                assert member is not None
                content = member.read()
                for old, new in entry.get("replace", {}).items():
                    content = content.replace(old.encode(), new.encode())
                taken[file] = content
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        taken = take(Path(directory))
    facts = described()
    for package in facts.values():
        for name, entry in package["files"].items():
            (VENDOR / name).write_bytes(taken[name])
            entry["sha256"] = digest(taken[name])
    (VENDOR / "versions.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"{len(taken)} files in {VENDOR}")


if __name__ == "__main__":
    main()
