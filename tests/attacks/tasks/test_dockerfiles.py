"""Dockerfiles that would make the engine fetch or grant something by itself, and ordinary ones beside them."""

import string
from pathlib import Path

import pytest

from farm.config import BuildOptions, load_config
from sandboxes.errors import ImageError
from sandboxes.images.build import read_dockerfile
from sandboxes.images.confinement import PackageIndexes, PipIndex
from sandboxes.images.confinement.indexes import Router
from sandboxes.images.confinement.screening import Sources, screen, screen_triggers


@pytest.mark.parametrize(
    "lines",
    [
        "ADD http://10.0.0.1/x /x",
        "add --chmod=0644 https://10.0.0.1/x /x",
        'ADD "ht""tp://10.0.0.1/x" /x',
        "ADD ht\\tp://10.0.0.1/x /x",
        "ADD ht\\\ntp://10.0.0.1/x /x",
        'ADD ["\\u0068ttp://10.0.0.1/x", "/x"]',
        'ADD [["a"], "/x"]',
        "ADD [" + "[" * 2000 + "]" * 2000 + ', "/x"]',
        "AD\\\nD http://10.0.0.1/x /x",
        "ADD\\\n http://10.0.0.1/x /x",
        "A\\ \n# comment\n\nDD\\\r\n\\\n\thttp://10.0.0.1/x /x",
        "RU\\\nN --network=host true",
        "COP\\\nY --from=10.0.0.1/x / /",
        "FR\\\nOM 10.0.0.1/x",
        "ONBUI\\\nLD ADD http://10.0.0.1/x /x",
        "ONBU\u0130LD ADD http://10.0.0.1/x /x",
        "ADD git@10.0.0.1:x/y.git /x",
        "ADD github.com/x/y /x",
        "ADD ssh://10.0.0.1/x /x",
        "ENV A=http:\nADD ${A}//10.0.0.1/x /x",
        "ENV A=p\nADD htt${A}://10.0.0.1/x /x",
        "ONBUILD ADD http://10.0.0.1/x /x",
        "ONBUILD RUN --network=host true",
        'RUN echo "a <<LATE"\nADD http://10.0.0.1/x /x\nRUN echo \\\nLATE',
        "RUN echo a\\\\\nADD http://10.0.0.1/x /x",
        "RUN --network=host true",
        "run --netw'or'k=host true",
        "RUN --mount=type=tmpfs,target=/x --network=host true",
        "RUN --security=insecure true",
        "RUN --mount=type=ssh true",
        "RUN --mount=type=secret,id=x true",
        "RUN --mount=id=x,type=cache true",
        "RUN --mount=type=$A,id=x true",
        "RUN --mount=type=bind,from=10.0.0.1/x,target=/x true",
        "COPY --from=10.0.0.1/x / /",
        "COPY --from=localhost/x / /",
        "FROM 10.0.0.1:5000/x",
        "FROM --platform=linux/amd64 [::1]:5000/x",
        "FROM registry.lan/x AS y",
        "FROM LAN/x",
        "FROM ${NOWHERE}/x",
        "FROM $HTTP_PROXY",
        "ARG B=debian\nARG \\\n# comment\n\n B=10.0.0.1/x\nFROM $B",
        "ARG B=debian \\\n C=10.0.0.1\nFROM ${C:-debian}/x",
        "AR\\\nG B=10.0.0.1/x\nFROM ${B:-debian}",
        "ARG B=10.0.\\\n0.1/x\nFROM $B",
        "ONBUILD ONBUILD RUN true",
        "ONBUILD " * 8_000 + "RUN true",
        "FROM 10.0.0.1/x${NOPE:+\u00a0}",
        "FROM --platform=linux/amd64\u00a010.0.0.1/x debian",
        "FROM --platform=linux/s390x debian",
        'ADD --chown=${NOPE:+[}0 ["http:\\u002f\\u002f10.0.0.1/x", "/x"]',
        'ADD --chown=0 ["$U", "/x"]',
        "ADD [[[[",
        "RUN --mount='\"from=10.0.0.1/x\"',target=/m true",
    ],
)
def test_dockerfile_with_forbidden_request_is_refused(lines: str) -> None:
    with pytest.raises(ImageError, match="Dockerfile line"):
        screen(f"ARG R=10.0.0.1\nFROM debian\n{lines}\n")


@pytest.mark.parametrize(
    "head",
    [
        "# syntax=10.0.0.1/x",
        "#syntax = 10.0.0.1/x",
        "# Syntax=evil/x",
        "// syntax=evil/x",
        "\ufeff# syntax=evil/x",
        "# escape=`\n# syntax=evil/x",
        "#!/bin/x\n# syntax=evil/x",
        "# syntax=docker/dockerfile:1\\\nevil",
    ],
)
def test_foreign_frontend_never_reaches_the_engine(head: str) -> None:
    """It is refused, or it is no directive in the text that the engine reads."""
    try:
        text = screen(f"{head}\nFROM debian\n").text
    except ImageError:
        return
    directives = text.split("# Directives end here.")[0]
    assert "evil" not in directives
    assert "10.0.0.1" not in directives


def test_registry_that_redefines_an_argument_is_refused() -> None:
    with pytest.raises(ImageError, match=r"10\.0\.0\.1"):
        screen("ARG R=docker.io\nARG R=10.0.0.1\nFROM ${R}/library/debian\n")


def test_ordinary_dockerfile_is_left_as_it_is() -> None:
    body = (
        "ARG V=3.12\nARG R=ghcr.io\nFROM --platform=$BUILDPLATFORM python:${V}-slim AS build\n"
        "RUN --mount=type=bind,target=/src pip install /src && echo 'docker run --network=host'\n"
        "RUN <<EOF\nfrom http import server\nEOF\n"
        "FROM ${R}/x/y:${TAG:-1}\nCOPY --from=build --chown=1:1 /a /b\nCOPY --from=0 /a /b\n"
        'ADD a.tar.gz $HOME/\nADD ./$V.tar /x\nRUN curl https://example.org | sh\nENTRYPOINT ["/b"]\n'
    )
    screened = screen(f"# syntax=docker/dockerfile:1\n# escape=`\n{body}")
    assert screened.text.startswith("# syntax=docker/dockerfile:1\n# escape=`\n# Directives end here.\n")
    assert screened.text.endswith(body)
    assert screened.bases == ("python:3.12-slim", "ghcr.io/x/y:1")


def test_shared_cache_mount_becomes_tmpfs() -> None:
    text = screen("FROM debian\nRUN --mount=type=cache,id=pip,target=/root/.cache pip install x\n").text
    assert "RUN --mount=type=tmpfs,target=/root/.cache pip install x" in text


def test_present_image_may_have_any_registry() -> None:
    assert screen("FROM 10.0.0.1/x\n", Sources(present=frozenset({"10.0.0.1/x:latest"}))).bases == ("10.0.0.1/x",)


def test_mirror_path_outside_the_indexes_is_refused() -> None:
    indexes = PackageIndexes(PipIndex(("https://pip.lan/root/simple",)))
    router = Router(indexes, b"key")
    link = router.link("https://pip.lan/root/simple/x/", "../../f/x-1.whl?a=b#sha256=1")
    path = link.partition("#")[0]
    found = router.find(path)
    assert found is not None
    assert found.url == "https://pip.lan/root/f/x-1.whl?a=b"
    for target in (
        path.replace("x-1", "x-2"),
        path.replace("pip.lan", "10.0.0.1"),
        f"{path}c",
        "/pip/1/x/",
        "/pip/0/a/b/",
    ):
        assert router.find(target) is None
    for target in (
        "/npm/x",
        "/npm/@a/b",
        "/npm/@a%2fb",
        "/npm/x/latest",
        "/npm/x/-/x-1.0.0.tgz",
        "/npm/@a/b/-/b-1.tgz",
    ):
        assert router.find(target) is not None
    for target in (
        "/pip/0/../x",
        "/pip/0/%2e%2e/",
        "/npm/../x",
        "/npm/%2e%2e/x",
        "/npm/%252e%252e/x",
        "/npm/..%5cx",
        "/npm/-/whoami",
        "/npm/./-/whoami",
        "/npm/%2e/-/npm/v1/tokens",
        "/npm/%2d/whoami",
        "/npm/x;/../-/whoami",
        "/npm//-/whoami",
        "/",
    ):
        assert router.find(target) is None


def test_build_hosts_are_listed_in_the_environment() -> None:
    config = load_config(
        environ={"FARM_BUILD_HOSTS": "crates.io, *.crates.io", "FARM_IMAGE_MIRROR": "mirror.lan:5000/x"}
    )
    assert config.build == BuildOptions(("crates.io", "*.crates.io"), ("mirror.lan:5000",))


@pytest.mark.parametrize(
    "before",
    ['LABEL a="b \\\nFROM scratch AS python', "RUN <<END\nFROM scratch AS python\nEND", "RUN a\\\n#\nFROM x AS python"],
)
def test_stage_declared_inside_another_instruction_hides_no_base(before: str) -> None:
    screened = screen(f"FROM debian\n{before}\nFROM python\n")
    assert "python" in (*screened.bases, *screened.stages)


def test_stage_name_is_not_a_base_image() -> None:
    screened = screen("FROM debian AS builder\nRUN true\n# a comment\nFROM builder AS Second\nFROM second\n")
    assert (screened.bases, screened.stages) == (("debian",), ())


DOUBLED = "ENV A=$A$A\n"


@pytest.mark.parametrize(
    "lines",
    [
        DOUBLED * 16,
        "ENV A $A$A\n" * 16,
        'EN\\\nV B=1 "A"=\'$A\'\\\n"$A"\n' * 16,
        "ENV B=${C:-$A$A}\nARG A=${B}$B\n" * 8,
        "ENV A=${A//x/" + "y" * 1000 + "}\n",
        "ENV A=${A}" + "x" * 60_000 + "\n" + "LABEL a=" + "$A" * 10_000,
    ],
)
def test_variables_that_grow_are_refused(lines: str) -> None:
    """The engine replaces variables in its own memory, which no limit of a build counts."""
    value = "x" * 1024
    for _ in range(16):
        value = string.Template(DOUBLED.strip().partition("=")[2]).substitute(A=value)
    assert len(value) == 64 << 20
    with pytest.raises(ImageError, match=r"more than \d+ characters"):
        screen(f"FROM debian\nENV A={'x' * 1024}\n{lines}")


def test_triggers_of_base_are_bounded_together() -> None:
    screen_triggers(["ENV A=$A$A"] * 2)
    with pytest.raises(ImageError, match="the variable A has more than"):
        screen_triggers(["ENV A=$A$A"] * 16)


def test_ordinary_variables_are_admitted() -> None:
    stage = (
        'FROM debian\nARG V=1\nENV V=$V HOME=/h\nENV PATH="$JAVA_HOME/bin:${HOME:-/root}/bin:$PATH"\nWORKDIR $HOME\n'
    )
    assert screen(stage * 20).bases == ("debian",)


@pytest.mark.parametrize("ignored", ["a\n" * 501, "a" * 20_000, "a\r" * 501])
def test_long_dockerignore_is_refused(tmp_path: Path, ignored: str) -> None:
    """The daemon takes some 30 times the size of the file from its own memory, and reads any size."""
    (tmp_path / "Dockerfile").write_text("FROM debian\n")
    (tmp_path / ".dockerignore").write_text("*.pyc\n" * 500)
    assert read_dockerfile("x", tmp_path, Sources()).bases == ("debian",)
    (tmp_path / ".dockerignore").write_bytes(ignored.encode())
    with pytest.raises(ImageError, match="dockerignore has more than"):
        read_dockerfile("x", tmp_path, Sources())
