"""Check a Dockerfile for fetches and grants by the engine itself, which no limit on a step's network stops.

The engine's parser finds the beginning of an instruction by rules that differ between versions (continuations,
heredocs). So each physical line that could begin an instruction is read as one: more lines are checked than the engine
executes. An instruction's name may itself be continued on the next line.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from sandboxes.errors import ImageError
from sandboxes.images.confinement.expansion import EXPANDED, ExpansionBound, TooLong
from sandboxes.images.confinement.instruction_words import BLANKS, split, values

PUBLIC_REGISTRIES = (
    "docker.io",
    "ghcr.io",
    "quay.io",
    "gcr.io",
    "mcr.microsoft.com",
    "public.ecr.aws",
    "registry.k8s.io",
)
_SYNTAX = re.compile(r"(?:docker\.io/)?docker/dockerfile(?::[A-Za-z0-9._-]+)?(?:@sha256:[0-9a-f]{64})?")
_DIRECTIVE = re.compile(r"^\s*(?:#|//)\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(\S.*)$")
_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_LIKE_ASCII = str.maketrans({"\u0130": "I", "\u212a": "K"})
"""Letters that the engine lowers to ASCII letters when it reads an instruction's name."""
_NAME_LETTERS = 11
"""The length of the longest name in ``_NAMES``."""
_CHAINED = re.compile(r"\s*ONBUILD\b", re.IGNORECASE)
_CHECKED = frozenset({"FROM", "ADD", "COPY", "RUN", "ONBUILD"})
_NAMES = _CHECKED | {
    *("ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER"),
    *("SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
MAX_INSTRUCTIONS = 500
"""The engine's own time for an instruction grows with the square of the instructions before it, and nothing limits it.
"""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-([^{}$]*))?\}|([A-Za-z_]\w*))")
_ARGUMENT = re.compile(r"(?<!\w)([A-Za-z_]\w*+)=(\S*+)")
_MOUNT = re.compile(r"(?<!\S)--mount=(\S+)", re.IGNORECASE)
_REMOTE = re.compile(r"^(?:[a-z][a-z0-9+.-]*://|git@|[\w.-]+@[\w.-]+:|(?:www\.)?github\.com/)", re.IGNORECASE)
_PLATFORM = {"TARGETARCH": "amd64", "BUILDARCH": "amd64", "TARGETOS": "linux", "BUILDOS": "linux"}
_OWN = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
_OWN_PLATFORMS = (f"linux/{_OWN}", "$BUILDPLATFORM", "${BUILDPLATFORM}", "$TARGETPLATFORM", "${TARGETPLATFORM}")
_FLAGS = re.compile(rf"(?:--[^{BLANKS}]*[{BLANKS}]+)*")
_PLAIN_FLAG = re.compile(
    r"--[A-Za-z-]+(?:=(?:[A-Za-z0-9_.,:=/@*~+%-]|\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*(?::-[A-Za-z0-9_./:@-]*)?\})*)?",
    re.ASCII,
)
_STAGE = re.compile(rf"FROM[{BLANKS}].*[{BLANKS}]AS[{BLANKS}]+([a-z][a-z0-9_.-]*)", re.IGNORECASE | re.ASCII)
_EXPANSIONS = 64
_DEPTH = 5
_LOGICAL_BYTES = 1 << 16
_READ_BYTES = 1 << 20
"""Characters of instructions that are read for one Dockerfile. Instructions overlap if each line could begin one."""


@dataclass(frozen=True, slots=True)
class ScreenedDockerfile:
    """A checked Dockerfile. ``bases`` are its ``FROM`` images with variables substituted, without its own stages.

    ``stages`` are names in ``FROM`` for which a line seems to declare a stage, but the line may be part of another
    instruction. If an image with such a name exists, check it too.
    """

    text: str
    bases: tuple[str, ...]
    stages: tuple[str, ...] = ()


class DockerfileRefused(Exception):
    """A refused line of a Dockerfile. The message holds the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Admitted image sources: ``registries`` in addition to PUBLIC_REGISTRIES, and the images on this machine."""

    registries: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()

    def admit(self, image: str) -> None:
        """Check the registry of an image. Raises DockerfileRefused."""
        registry = registry_of(image)
        if registry in PUBLIC_REGISTRIES or registry in self.registries:
            return
        if not self.present.isdisjoint((image, f"{image}:latest")):
            return
        raise DockerfileRefused(
            f"{image[:100]} is of the registry {registry[:60]}, which is not among those that images may come from; "
            "name it in build_registries"
        )


_PUBLIC = Sources()


def screen(text: str, sources: Sources = _PUBLIC) -> ScreenedDockerfile:
    """Check a Dockerfile, and rewrite its parser directives and cache mounts.

    Cache mounts become empty temporary mounts, because builds of different authors would share them. Raises ImageError.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    directives = _directives(lines)
    escape = "`" if directives.get("escape") == "`" else "\\"
    syntax = directives.get("syntax")
    if syntax is not None and not _SYNTAX.fullmatch(syntax):
        raise ImageError(f"Dockerfile: syntax={syntax[:100]} is not admitted; use docker/dockerfile or no such line")
    if lines and lines[0].lstrip().startswith("{"):
        raise ImageError("Dockerfile: it begins as JSON; begin with FROM")
    lines = [_without_cache(line) for line in lines]
    reader = _Reader(lines, escape, sources)
    bases = reader.check()
    head = [f"# syntax={syntax}"] if syntax else []
    head += [f"# escape={escape}"] if escape != "\\" else []
    return ScreenedDockerfile("\n".join([*head, "# Directives end here.", *lines]), bases, reader.doubtful)


def screen_triggers(triggers: Sequence[str], sources: Sources = _PUBLIC) -> None:
    """Check the ``ONBUILD`` instructions that a base image holds. Raises ImageError."""
    _Reader([trigger.replace("\n", " ") for trigger in triggers], "\\", sources).check()


def registry_of(image: str) -> str:
    """Return the registry of an image's name as the engine reads it."""
    first, slash, _ = image.partition("/")
    named = bool(slash) and (bool(set(first) & set(".:")) or first == "localhost" or first != first.lower())
    return first.removeprefix("index.") if named and first.endswith("docker.io") else first if named else "docker.io"


class _Reader:
    def __init__(self, lines: Sequence[str], escape: str, sources: Sources) -> None:
        self._lines = lines
        self._escape = escape
        self._sources = sources
        self._stages: set[str] = set()
        self._doubtful: set[str] = set()
        self.doubtful: tuple[str, ...] = ()
        """Bases that may be stages; set by ``check``."""
        self._read_bytes = 0
        self._arguments: Mapping[str, Sequence[str]] = {}
        self._heredoc = next((at for at, line in enumerate(lines) if "<<" in line), len(lines))

    def check(self) -> tuple[str, ...]:
        """Return the images of ``FROM``. Raises ImageError with the number of the line."""
        bases: dict[str, None] = {}
        before = ""
        self._arguments = self._read_arguments()
        count, expansion = 0, ExpansionBound()
        for index, line in enumerate(self._lines):
            last, before = before, line if _is_code(line) else before
            match = _INSTRUCTION.match(self._head(index))
            count += match is not None and match[1].upper() in _NAMES
            if count > MAX_INSTRUCTIONS:
                raise ImageError(f"Dockerfile line {index + 1}: more than {MAX_INSTRUCTIONS} instructions; join some")
            if match is None or match[1].upper() not in _CHECKED | EXPANDED:
                continue
            try:
                text = self._logical(index)
                expansion.add(match[1].upper(), _INSTRUCTION.sub(r"\2", text), self._escape)
                found = self._instruction(text)
            except DockerfileRefused as refused:
                raise ImageError(f"Dockerfile line {index + 1}: {refused}") from None
            except TooLong as error:
                raise ImageError(f"Dockerfile line {index + 1}: {error}; name fewer in one another") from None
            bases |= dict.fromkeys(base for base in found if base.lower() not in {"scratch", *self._stages})
            self._declare(text, is_sure=not last.rstrip().endswith(self._escape) and index <= self._heredoc)
        self.doubtful = tuple(base for base in bases if base.lower() in self._doubtful)
        return tuple(base for base in bases if base not in self.doubtful)

    def _read_arguments(self) -> dict[str, list[str]]:
        """Return all defaults of each ``ARG`` in the file, because it depends on the parser which of them applies.

        An ``ARG`` may be continued, so its first line is read alone and together with its continuation lines. Raises
        ImageError.
        """
        found: dict[str, list[str]] = {name: [value] for name, value in _PLATFORM.items()}
        for index, line in enumerate(self._lines):
            match = _INSTRUCTION.match(self._head(index))
            if match is None or match[1].upper() != "ARG":
                continue
            try:
                texts = {line, self._logical(index)}
            except DockerfileRefused as refused:
                raise ImageError(f"Dockerfile line {index + 1}: {refused}") from None
            for name, value in (each for text in texts for each in _ARGUMENT.findall(text)):
                found.setdefault(name, []).append(value.replace('"', "").replace("'", ""))
        return found

    def _head(self, index: int) -> str:
        """Return a line, joined with its continuation lines until the instruction's name is complete."""
        head = ""
        for at in range(index, len(self._lines)):
            line = self._lines[at]
            if head and not _is_code(line):
                continue
            end = line.rstrip()
            head += end.removesuffix(self._escape)
            name = head.strip()
            if not end.endswith(self._escape) or not name.isalpha() or len(name) > _NAME_LETTERS:
                break
        return head.translate(_LIKE_ASCII)

    def _declare(self, text: str, *, is_sure: bool) -> None:
        """Record the stage that a ``FROM`` instruction names. A line inside another instruction declares none."""
        named = _STAGE.fullmatch(text.strip())
        if named is None:
            return
        (self._stages if is_sure else self._doubtful).add(named[1].lower())

    def _logical(self, index: int) -> str:
        parts: list[str] = []
        size = 0
        while index < len(self._lines):
            line = self._lines[index].rstrip()
            size += len(line)
            self._read_bytes += len(line) + 1
            if self._read_bytes > _READ_BYTES:
                raise DockerfileRefused(
                    "too many lines may begin an instruction inside another; write fewer RUN, COPY and ADD"
                )
            if size > _LOGICAL_BYTES:
                raise DockerfileRefused(f"the instruction is longer than {_LOGICAL_BYTES} characters; split it")
            skipped = bool(parts) and (not line.strip() or line.lstrip().startswith("#"))
            if not skipped:
                parts.append(line.removesuffix(self._escape))
                if not line.endswith(self._escape):
                    break
            index += 1
        return "".join(parts).translate(_LIKE_ASCII)

    def _instruction(self, text: str) -> list[str]:
        match = _INSTRUCTION.match(text)
        if match is None:
            return []
        name, rest = match[1].upper(), match[2]
        _refuse_odd_flags(name, rest)
        flags, words = split(rest, self._escape)
        if name == "ONBUILD":
            if _CHAINED.match(rest):
                raise DockerfileRefused("ONBUILD may not trigger ONBUILD; write one of them")
            return self._instruction(rest) and []
        if name == "FROM" and (len(words) == 1 or (len(words) == 3 and words[1].lower() == "as")):
            images = self._expand(words[0])
            for image in images:
                self._sources.admit(image)
            for value in values(flags, "--platform"):
                if value not in _OWN_PLATFORMS:
                    raise DockerfileRefused(f"FROM --platform={value[:40]} is not this machine's; leave it out")
            return images
        if name == "ADD":
            self._admit_sources(rest, words)
        if name == "COPY":
            for value in values(flags, "--from"):
                self._admit_all(value)
        if name == "RUN":
            self._admit_run(flags)
        return []

    def _admit_run(self, flags: Sequence[str]) -> None:
        for value in values(flags, "--network"):
            if value.lower() not in ("none", "default"):
                raise DockerfileRefused(
                    f"RUN --network={value[:40]} is not admitted; leave it out, package indexes are reached without"
                )
        if any(value.lower() != "sandbox" for value in values(flags, "--security")):
            raise DockerfileRefused("RUN --security is not admitted; leave it out")
        if any(flag.lower().startswith("--device") for flag in flags):
            raise DockerfileRefused("RUN --device is not admitted; leave it out")
        for value in values(flags, "--mount"):
            options = dict(_option(part) for part in value.split(","))
            kind = options.get("type", "bind").lower()
            if kind not in ("bind", "tmpfs"):
                raise DockerfileRefused(
                    f"RUN --mount=type={kind[:40]} is not admitted; use a mount of type bind or tmpfs"
                )
            if "from" in options:
                self._admit_all(options["from"])

    def _admit_sources(self, rest: str, words: Sequence[str]) -> None:
        found = [words]
        body = _FLAGS.sub("", rest)
        if body.startswith("["):
            try:
                parsed = json.loads(body)
            except (ValueError, RecursionError):
                parsed = None
            if not isinstance(parsed, list) or any(isinstance(word, list | dict) for word in parsed):
                raise DockerfileRefused("ADD: a list in brackets is not valid JSON; write it without brackets")
            found.append([word for word in parsed if isinstance(word, str)])
        for sources in found:
            for at, source in enumerate(sources):
                plain = (
                    source.replace('"', "").replace("'", "").replace("\\", "").replace(self._escape, "").lstrip("[, ")
                )
                is_open = "$" in plain and not plain.startswith(("./", "/")) and at < len(sources) - 1
                if _REMOTE.match(plain) or is_open:
                    raise DockerfileRefused(
                        f"ADD {source[:80]}: the engine would fetch it from its own network; "
                        "fetch it in a RUN step from an allowed host, or COPY a file of the context"
                    )

    def _admit_all(self, word: str) -> None:
        for image in self._expand(word):
            self._sources.admit(image)

    def _expand(self, word: str) -> list[str]:
        words = {word}
        for _ in range(_DEPTH):
            if not any("$" in each for each in words):
                return sorted(words)
            words = {each for word in words for each in islice(self._substitute(word), _EXPANSIONS)}
            if len(words) >= _EXPANSIONS:
                break
        raise DockerfileRefused(f"{word[:80]}: the name of this image is known only during the build; write it out")

    def _substitute(self, word: str) -> Iterator[str]:
        pieces, last = [], 0
        for found in _VARIABLE.finditer(word):
            values = set(self._arguments.get(found[1] or found[3], ())) | (
                {found[2]} if found[2] is not None else set()
            )
            if not values:
                raise DockerfileRefused(
                    f"{word[:80]}: the name of this image is known only during the build; write it out"
                )
            pieces += [[word[last : found.start()]], sorted(values)]
            last = found.end()
        rest = word[last:]
        if "$" in "".join(pieces[at][0] for at in range(0, len(pieces), 2)) + rest:
            raise DockerfileRefused(f"{word[:80]}: the name of this image is known only during the build; write it out")
        for parts in product(*pieces):
            yield "".join(parts) + rest


def _refuse_odd_flags(name: str, rest: str) -> None:
    """Refuse a flag that the engine may read in another way: quoted, escaped, or with blanks beyond ASCII."""
    if name == "ONBUILD":
        return
    flags = _FLAGS.match(f"{rest} ")
    for flag in re.split(f"[{BLANKS}]+", flags[0].strip(BLANKS)) if flags and flags[0] else ():
        if not _PLAIN_FLAG.fullmatch(flag):
            raise DockerfileRefused(f"{name} {flag[:60]}: write the flag without quotes, escapes and brackets")


def _is_code(line: str) -> bool:
    """Return whether a line is neither blank nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _directives(lines: Sequence[str]) -> Mapping[str, str]:
    """Return the parser directives; the first of each name applies."""
    found: dict[str, str] = {}
    for at, line in enumerate(lines):
        match = _DIRECTIVE.match(line)
        if match is None and at == 0 and line.startswith("#!"):
            continue
        if match is None:
            break
        found.setdefault(match[1].lower(), match[2].rstrip())
    return found


def _option(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    if "$" in value and key.strip().lower() in ("type", "from"):
        raise DockerfileRefused(f"RUN --mount={part[:60]}: write its {key.strip()} out")
    return key.strip().lower(), value.strip()


def _without_cache(line: str) -> str:
    def empty(found: "re.Match[str]") -> str:
        options = dict(part.partition("=")[::2] for part in found[1].split(","))
        target = next((options[key] for key in ("target", "dst", "destination") if key in options), None)
        if options.get("type") != "cache" or target is None:
            return found[0]
        return f"--mount=type=tmpfs,target={target}"

    return _MOUNT.sub(empty, line)
