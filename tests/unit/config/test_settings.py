"""The configuration is one value with one order of precedence, and a slip in it is named."""

import sys
from pathlib import Path

import pytest

from farm.cli.options import read_config
from farm.config import Config, ConfigError, load_config


def test_flags_override_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text("port = 1111\nslots = 3\nlease_s = 10\n")
    config = load_config(file, environ={"FARM_PORT": "2222", "FARM_SLOTS": "4"}, flags={"port": 3333, "slots": None})
    assert (config.port, config.slots, config.lease_s) == (3333, 4, 10.0)


def test_missing_values_have_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(environ={})
    assert config.url == "http://127.0.0.1:8710"
    assert config.redis_url is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = ", "is not TOML: "),
        ("port = " + "[" * 100_000, "is nested too deeply; "),
        ("port = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("port = 99999999999999999999", "port: should be less than or equal to 65535"),
        ("lease_s = nan", "lease_s: should be "),
        ("tasksets = 5", "tasksets: should be a path"),
    ],
)
def test_invalid_file_gives_one_line_error(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"FARM_PROT": "1"}, "FARM_PORT"),
        ({"FARM_PORT": "many"}, "FARM_PORT: "),
        ({"FARM_PORT": "70000"}, "65535"),
        ({"FARM_CONFG": "farm.toml"}, "unknown variable FARM_CONFG; the nearest one is FARM_CONFIG"),
        ({"FARM_SLOTS": "abc"}, "FARM_SLOTS: should be a valid integer"),
        ({"FARM_RUNTIME": "podman"}, "FARM_RUNTIME: "),
        ({"FARM_HOST": "0.0.0.0"}, "FARM_HOST: 0.0.0.0 is not loopback and no token is set; set FARM_TOKENS"),
        ({"FARM_TOKENS": "operator"}, "FARM_TOKENS: write tokens as role=token"),
        ({"FARM_TOKENS": "king=abc"}, "FARM_TOKENS.king"),
        ({"FARM_TOKENS_FILE": "/nonexistent"}, "FARM_TOKENS_FILE: /nonexistent: No such file or directory; name a"),
        ({"FARM_TOKENS_FILE": sys.executable}, "it is not text; name a readable file"),
        ({"FARM_IMAGE_DISK_HIGH": "85"}, "FARM_IMAGE_DISK_HIGH: "),
        ({"FARM_IMAGE_DISK_LOW": "0.9"}, "FARM_IMAGE_DISK_LOW: 0.9 is above image_disk_high, 0.85; lower it"),
    ],
)
def test_a_wrong_value_is_named(environ: dict[str, str], said: str, tmp_path: Path) -> None:
    empty = tmp_path / "farm.toml"
    empty.touch()
    with pytest.raises(ConfigError) as caught:
        load_config(empty, environ=environ)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", Config.model_fields)
def test_mistyped_variable_names_the_nearest_one(key: str) -> None:
    meant = f"FARM_{key.upper()}"
    mistyped = meant[:6] + meant[7:]
    with pytest.raises(ConfigError, match=f"^unknown variable {mistyped}; the nearest one is {meant}$"):
        load_config(environ={mistyped: "1"})


ANY_TEXT = {
    "archive",
    "build_hosts",
    "build_registries",
    "docker_host",
    "image_mirror",
    "node_ip",
    "policy_key",
    "redis_url",
    "state_dir",
    "tasksets",
    "token",
}
"""Keys for which ``abc`` is a value."""


@pytest.mark.parametrize("key", sorted(Config.model_fields.keys() - ANY_TEXT))
def test_wrong_value_of_a_variable_names_the_variable(key: str) -> None:
    variable = f"FARM_{key.upper()}"
    with pytest.raises(ConfigError, match=f"^{variable}(: |\\.)"):
        load_config(environ={variable: "abc"})


def test_wrong_values_name_their_file_or_flag(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text("slots = 0\n")
    with pytest.raises(ConfigError, match=f"^{file}: slots: "):
        load_config(file, environ={})
    with pytest.raises(ConfigError, match=r"^--slots: "):
        load_config(environ={}, flags={"slots": 0})


def test_variable_names_the_configuration_file(tmp_path: Path) -> None:
    file, other = tmp_path / "farm.toml", tmp_path / "other.toml"
    file.write_text("port = 1111\n")
    other.write_text("port = 2222\n")
    assert load_config(environ={"FARM_CONFIG": str(file)}).port == 1111
    assert load_config(other, environ={"FARM_CONFIG": str(file)}).port == 2222
    with pytest.raises(ConfigError, match=r"none\.toml: No such file or directory; name a readable file"):
        load_config(environ={"FARM_CONFIG": str(tmp_path / "none.toml")})


def test_file_in_the_working_directory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repository that was cloned may bring a file that sends keys to its author."""
    (tmp_path / "farm.toml").write_text('policy_url = "https://elsewhere.example/v1"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    assert load_config(environ={}).policy_url is None
    assert read_config(None).policy_url is None
    assert capsys.readouterr().err == (
        "note: farm.toml in this directory is not read; name it with --config farm.toml or FARM_CONFIG\n"
    )
    assert read_config(Path("farm.toml")).policy_url == "https://elsewhere.example/v1"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "the nearest one is 'port'"),
        ("port = ", "is not TOML"),
        ('tokens = {operator = "x"}', "tokens do not belong"),
    ],
)
def test_a_wrong_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(file, environ={})


def test_requested_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load_config(tmp_path / "none.toml", environ={})


def test_an_open_address_needs_a_token() -> None:
    config = load_config(environ={"FARM_HOST": "0.0.0.0", "FARM_TOKENS": "operator=s3cret,learner=other"})
    assert config.tokens["operator"].get_secret_value() == "s3cret"
    assert "s3cret" not in repr(config)


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("operator=a\nlearner=b\n")
    config = load_config(environ={"FARM_TOKENS_FILE": str(file)})
    assert {role: token.get_secret_value() for role, token in config.tokens.items()} == {
        "operator": "a",
        "learner": "b",
    }


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config(state_dir=Path("/nowhere")).port = 1


def test_archive_is_an_absolute_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archives = {text: load_config(environ={"FARM_ARCHIVE": text}).archive for text in ("kept", "s3://b/kept", "")}
    assert archives == {"kept": str(tmp_path / "kept"), "s3://b/kept": "s3://b/kept", "": None}
    with pytest.raises(ConfigError, match="FARM_ARCHIVE: it gets what is older than retention_s, which is 0; set"):
        load_config(environ={"FARM_ARCHIVE": "kept", "FARM_RETENTION_S": "0"})
    with pytest.raises(ConfigError, match=r"FARM_ARCHIVE_FORMAT: .*'jsonl.zst' or 'parquet'"):
        load_config(environ={"FARM_ARCHIVE": "kept", "FARM_ARCHIVE_FORMAT": "csv"})
