"""Rewriting a Dockerfile for the build: every RUN is granted its mounts, and nothing else changes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.images.dockerfile import grant, instructions

MOUNT = "type=secret,id=x,target=/run/x"
FLAG = f" --mount={MOUNT}"


def granted(text: str) -> str:
    return grant(text, mounts=[MOUNT], arguments=["A", "B"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("RUN true", f"RUN{FLAG} true"),
        ("run true", f"run{FLAG} true"),
        ("  RUN\ttrue", f"  RUN{FLAG}\ttrue"),
        ('RUN ["a", "b"]', f'RUN{FLAG} ["a", "b"]'),
        ("RUN --mount=type=cache,target=/c true", f"RUN{FLAG} --mount=type=cache,target=/c true"),
        ("RUN a \\\n && RUN b", f"RUN{FLAG} a \\\n && RUN b"),
        ("RUN \\\n  # RUN c\n\n  a", f"RUN{FLAG} \\\n  # RUN c\n\n  a"),
        ("RUN a \\  \n b\nRUN c", f"RUN{FLAG} a \\  \n b\nRUN{FLAG} c"),
        ("RUN <<EOF\nRUN no\nFROM no\nEOF\nRUN b", f"RUN{FLAG} <<EOF\nRUN no\nFROM no\nEOF\nRUN{FLAG} b"),
        ("COPY <<-'EOF' /x\nRUN no\n\tEOF\nRUN b", f"COPY <<-'EOF' /x\nRUN no\n\tEOF\nRUN{FLAG} b"),
        ("RUN cat <<A <<B\nRUN a\nA\nRUN b\nB\nRUN c", f"RUN{FLAG} cat <<A <<B\nRUN a\nA\nRUN b\nB\nRUN{FLAG} c"),
        ("RUN echo $((1<<n))\nRUN b", f"RUN{FLAG} echo $((1<<n))\nRUN{FLAG} b"),
        ("RUN cat <<<word\nRUN b", f"RUN{FLAG} cat <<<word\nRUN{FLAG} b"),
        ("# escape=`\nRUN a `\n RUN b", f"# escape=`\nRUN{FLAG} a `\n RUN b"),
        ("RUN a\\b\nRUN c", f"RUN{FLAG} a\\b\nRUN{FLAG} c"),
        ("ONBUILD RUN true", "ONBUILD RUN true"),
        ("# RUN true", "# RUN true"),
        ("ENV X=RUN", "ENV X=RUN"),
        ("RUNNER x", "RUNNER x"),
        ("FROM a AS b", "FROM a AS b\nARG A\nARG B"),
        ("from a \\\n  as b\nRUN x", f"from a \\\n  as b\nARG A\nARG B\nRUN{FLAG} x"),
        ("FROM a\nFROM b\n", "FROM a\nARG A\nARG B\nFROM b\nARG A\nARG B\n"),
        ("RUN a\r\nRUN b\r\n", f"RUN{FLAG} a\r\nRUN{FLAG} b\r\n"),
    ],
)
def test_mounts_and_arguments_are_added_to_dockerfile(before: str, after: str) -> None:
    assert granted(before) == after


@given(st.text())
def test_dockerfile_without_grants_is_unchanged(text: str) -> None:
    assert grant(text, mounts=[], arguments=[]) == text


LINES = st.lists(
    st.sampled_from(
        ["FROM a", "RUN x", "RUN y \\", "  && z", "", "# c", "RUN <<E", "E", "COPY <<E /f", 'RUN ["q"]', "ENV a=\\"]
    ),
    max_size=12,
)


@given(LINES)
def test_removing_grants_restores_dockerfile(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert granted(text).replace(FLAG, "").replace("\nARG A\nARG B", "") == text


@given(LINES)
def test_instructions_do_not_overlap(lines: list[str]) -> None:
    found = list(instructions("\n".join(lines)))
    assert all(item.first <= item.last < len(lines) for item in found)
    assert all(one.last < other.first for one, other in pairwise(found))
