"""Compose files: the one service main, what of it is taken, and what is refused by its key."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.tasks import TaskError
from farm.tasks.schema.compose import ComposeSettings, parse_compose
from tests.unit.tasks.test_loader import complaint, load, write_task

FILE = Path("task/environment/docker-compose.yaml")

HARBORS = """\
services:
  main:
    build:
      context: .
      dockerfile: Dockerfile
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${TEST_DIR}
      - MODE=fast
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
    deploy:
      resources:
        limits: {cpus: "${CPUS}", memory: "${MEMORY}"}
"""


def test_compose_files_of_harbor_are_accepted() -> None:
    assert parse_compose(FILE, HARBORS.encode()) == ComposeSettings(env={"MODE": "fast"})


def test_image_workdir_and_variables_are_read() -> None:
    text = b"services:\n  main:\n    image: org/x:1\n    working_dir: /srv\n    environment: {A: 1, B: '', C: a$$b}\n"
    assert parse_compose(FILE, text) == ComposeSettings("org/x:1", "/srv", {"A": "1", "B": "", "C": "a$b"})


def _bomb(level: str, key: str) -> str:
    """Return some hundred bytes of YAML that expand to some million values."""
    levels = [f"x-a{depth + 1}: &a{depth + 1} {level.format(f'a{depth}')}" for depth in range(30)]
    return "\n".join(["x-a0: &a0 {k: v}", *levels, f"services: {{main: {{{key}: *a30}}}}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not YAML"),
        ("a: " + "[" * 50_000, "not YAML"),
        ("x-deep: " + "[" * 101 + "]" * 101 + "\nservices: {main: {}}", "nested too deeply: more than 100 levels"),
        ("x-self: &x [*x]\nservices: {main: {}}", "not YAML (an alias inside a value with an anchor"),
        ("x: [" + "*a, " * 17 + "]\nservices: {main: {}}", "not YAML (found undefined alias"),
        ("x: &a 1\ny: [" + "*a, " * 17 + "]\nservices: {main: {}}", "not YAML (more than 16 aliases)"),
        ("x: !!int ''", "not YAML"),
        ("x: !!bool y", "not YAML"),
        ("x: 1" + ":1" * 9_000 + ".5", "not YAML (a value of more than 64 characters that is no text)"),
        ("services: {main: {environment: {A: 0x" + "f" * 9_000 + "}}}", "not YAML (a value of more than 64 characters"),
        ("x: " + "y" * 100_000, "not YAML (more than 64 KiB)"),
        (_bomb("[*{0}, *{0}, *{0}, *{0}]", "command"), "not YAML (an alias inside a value with an anchor"),
        (_bomb("{{<<: [*{0}, *{0}]}}", "environment"), "not YAML (an alias inside a value with an anchor"),
        ("3", "services: missing"),
        ("services: {app: {}}", "services.main: missing"),
        ("services: {main: {}, db: {}}", "services.db: a sandbox is one container"),
        ("services: {main: 3}", "services.main: not a service"),
        ("services: {main: {}}\nnetworks: {}", "networks: cannot be honoured"),
        ("services: {main: {privileged: true}}", "services.main.privileged: cannot be honoured"),
        ("services: {main: {volumes: ['/:/host']}}", "services.main.volumes: nothing of the host"),
        ("services: {main: {command: 'redis-server'}}", "services.main.command: is not run"),
        ("services: {main: {network_mode: host}}", "services.main.network_mode: sandboxes have no network"),
        ("services: {main: {build: ../x}}", "services.main.build: only environment/Dockerfile"),
        ("services: {main: {build: {context: ., args: {A: b}}}}", "services.main.build: only"),
        ("services: {main: {image: [x]}}", "services.main.image"),
        ("services: {main: {image: Org/X}}", "services.main.image: 'Org/X' is not an image name"),
        ("services: {main: {working_dir: x}}", "services.main.working_dir"),
        (
            "services: {main: {environment: {A: 'x${HOME}'}}}",
            "services.main.environment: '${HOME}' is a variable of the host",
        ),
        ("services: {main: {environment: {A: 'x${TEST_DIR}'}}}", "services.main.environment.A: not a plain variable"),
        ("services: {main: {environment: {A: [x]}}}", "services.main.environment.A: not a plain variable"),
        ("services: {main: {environment: {A: null}}}", "services.main.environment.A: has no value"),
        ("services: {main: {environment: [HOME]}}", "services.main.environment.HOME: has no value"),
        ("services: {main: {environment: 3}}", "services.main.environment: not a list"),
    ],
)
def test_unsupported_keys_are_refused(text: str, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_compose(FILE, text.encode())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        *("$SECRET", "${SECRET}", "${SECRET:-x}", "${SECRET:?no}", "${secret}"),
        *("$TEST_DIR_", "${TEST_DIR:-$SECRET}", "$$$SECRET", "${", r"${\n}"),
    ],
)
@pytest.mark.parametrize(
    "key",
    [
        'image: "%s"',
        'working_dir: "%s"',
        'build: "%s"',
        'volumes: ["%s:/x"]',
        'command: ["%s"]',
        'environment: ["A=%s"]',
        'environment: {A: "%s"}',
    ],
)
def test_host_variables_are_refused(key: str, asked: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_compose(FILE, f"services: {{main: {{{key % asked}}}}}".encode())
    assert f"services.main.{key.partition(':')[0]}: " in str(caught.value)
    assert "is a variable of the host, which no sandbox has; write its value" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_refused() -> None:
    levels = [f"x-a{depth + 1}: &a{depth + 1} {'[' * 90}*a{depth}{']' * 90}" for depth in range(15)]
    text = "\n".join(["x-a0: &a0 x", *levels, "services: {main: {command: *a15}}"])
    with pytest.raises(TaskError, match="not YAML"):
        parse_compose(FILE, text.encode())


def test_nesting_within_the_limit_is_read() -> None:
    text = "x-deep: " + "[" * 99 + "]" * 99 + "\nservices: {main: {}}"
    assert parse_compose(FILE, text.encode()) == ComposeSettings()


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([*"{}[],:&*!-", "services", "main", "build", "\n", " ", "a", "!!python/name:os.system"]))
    .map("".join)
    .map(str.encode)
)
def test_arbitrary_bytes_raise_only_task_error(content: bytes) -> None:
    try:
        assert isinstance(parse_compose(FILE, content), ComposeSettings)
    except TaskError as error:
        assert "\n" not in str(error)  # noqa: PT017 - one of two right outcomes


def test_task_with_compose_file_is_loaded(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    (path / "environment" / "docker-compose.yaml").write_text(HARBORS)
    toml = '[environment]\nworkdir = "/srv"\n[environment.env]\nMODE = "slow"\n'
    (path / "task.toml").write_text(toml + '[metadata.farm]\nfail_to_pass = ["tests/test_a.py::test_b"]\n')
    task = load(path).task
    assert (task.env, task.workspace) == ((("MODE", "slow"),), "/srv")
    (path / "environment" / "docker-compose.yaml").write_text("services: {main: {}, db: {}}")
    assert "environment/docker-compose.yaml: services.db" in complaint(path)


def test_compose_yml_is_an_ordinary_file(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    content = "services: {web: {privileged: true}, db: {}}\n"
    (path / "environment" / "docker-compose.yml").write_text(content)
    bundle = load(path)
    assert bundle.environment["docker-compose.yml"].content == content.encode()
    assert bundle.task.env == ()
