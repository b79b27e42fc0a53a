"""Files and overrides become a Config, or an error that names the setting."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

import evoke.config
from evoke.config import Config, ConfigError, load
from evoke.config.schema import rules
from evoke.config.tables import FILE_BYTES_MAX

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ANNOTATED = Path(evoke.config.__file__).with_name("evoked.toml")


def refusal(tmp_path: Path, text: str) -> ConfigError:
    file = tmp_path / "evoked.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.file == str(file)
    return caught.value


def test_annotated_file_is_the_defaults() -> None:
    """evoked.toml names every setting of the schema, in its order, with its default."""
    tables = tomllib.loads(ANNOTATED.read_text())
    in_file = {section: list(table) for section, table in tables.items()}
    in_schema = {section: list(keys) for section, (_, keys) in rules().items()}
    assert in_file == in_schema
    assert load(ANNOTATED) == load() == Config()


def test_annotated_file_explains_every_setting() -> None:
    """Each setting of evoked.toml stands below a comment (socket_mode shares its group's)."""
    lines = ANNOTATED.read_text().splitlines()
    bare = [
        line
        for above, line in pairwise(lines)
        if "=" in line and not line.startswith("#") and not above.startswith("#")
    ]
    assert bare == ['socket_mode = "0660"']


def test_values_are_resolved(tmp_path: Path) -> None:
    """Sizes become bytes, the socket mode a number, uids a tuple; the rest keeps its defaults."""
    file = tmp_path / "evoked.toml"
    file.write_text(
        'host.capacity = "8 MiB"\n[access]\nuids = [0, 1000]\nsocket_mode = "0600"\n'
        '[limits]\nsession_inflight_bytes = "2MB"\n'
    )
    config = load(file)
    assert config.host.capacity_bytes == 8 << 20
    assert config.access.uids == (0, 1000)
    assert config.access.socket_mode == 0o600
    assert config.limits.session_inflight_bytes == 2_000_000
    assert config.limits.sessions == Config().limits.sessions


@pytest.mark.parametrize(
    ("text", "key", "line", "reason", "allowed"),
    [
        ("\n[limit]\n", "limit", 2, "did you mean 'limits'", "daemon, host"),
        ("limits = 3", "limits", 1, "a number, not a section", "[limits]"),
        ("[limits]\n# sesions\nsesions = 3", "limits.sesions", 3, "'sessions'?", "sessions"),
        ("[limits]\nsessions = '3'", "limits.sessions", 2, "'3' is a text", "1 to 65536"),
        ("[limits]\nsessions = true", "limits.sessions", 2, "a switch", "1 to 65536"),
        ("[limits]\nsessions = 3.0", "limits.sessions", 2, "a decimal number", "1 to 65536"),
        ("[limits]\nsessions = 0", "limits.sessions", 2, "0 is out of range", "1 to 65536"),
        ("limits = {sessions = 65537}", "limits.sessions", 1, "65537 is out", "1 to 65536"),
        ("[limits]\nsessions = [\n1,\n2]", "limits.sessions", 2, "a list", "1 to 65536"),
        ("[host]\ncapacity = 4096", "host.capacity", 2, "not a text with a unit", '"2MiB" to'),
        ("[host]\ncapacity = '4096'", "host.capacity", 2, "has no unit", "MiB"),
        ("[host]\ncapacity = '8Gib'", "host.capacity", 2, "'Gib' in '8Gib' is not", "GiB"),
        ("[host]\ncapacity = 'much'", "host.capacity", 2, "not a size", "GiB"),
        ("[host]\ncapacity = '1MiB'", "host.capacity", 2, "out of range", '"2MiB" to'),
        ("[host]\ncapacity = '60TiB'", "host.capacity", 2, "above the memory", "share"),
        ("[host]\ncapacity = '101%'", "host.capacity", 2, "more than all", "share"),
        ("[host]\nbacking = 'huge'", "host.backing", 2, "'huge' is not known", "auto, hugetlb"),
        ("[host]\nlock = 'yes'", "host.lock", 2, "'yes' is a text", "true or false"),
        ("[limits]\nloop_memory_bytes='1%'", "limits.loop_memory_bytes", 2, "a share", "16MiB"),
        ("[daemon]\nlog = 3", "daemon.log", 2, "not a text", "console"),
        ("[daemon]\nsocket = '/" + "x" * 94 + "'", "daemon.socket", 2, "95 characters", "94"),
        ("[daemon]\nsocket = 'a\\u0001'", "daemon.socket", None, "", ""),
        ('[daemon]\nsocket = "a\\u0001"', "daemon.socket", 2, "cannot be printed", "one line"),
        ("[access]\nuids = [1, 2, 1]", "access.uids", 2, "twice", "different"),
        ("[access]\nuids = [-1]", "access.uids", 2, "-1 is out of range", "4294967294"),
        ("[access]\nuids = 7", "access.uids", 2, "not a list", "list"),
        ("[access]\nsocket_mode = 660", "access.socket_mode", 2, "octal", '"0600"'),
        ("[access]\nsocket_mode = '0068'", "access.socket_mode", 2, "octal", '"0600"'),
        ("[access]\nsocket_mode = '0060'", "access.socket_mode", 2, "lock the daemon", '"0600"'),
        ("[tenants]\nexceptions = [{grants = 1}]", "tenants.exceptions", 2, "a salt", "list"),
        (
            "[tenants]\nexceptions = [{salt = 'a', grants = 0}]",
            "tenants.exceptions",
            2,
            "0",
            "salt",
        ),
        ("[tenants]\nexceptions = [{salt = 'a', gifts = 1}]", "tenants.exceptions", 2, "gifts", ""),
        (
            "[tenants]\nexceptions = [{salt = 'a'}, {salt = 'a'}]",
            "tenants.exceptions",
            2,
            "salt 'a' is named twice",
            "",
        ),
        ("[debug]\ninject = 1979-05-27", "debug.inject", 2, "a date", "true or false"),
    ],
)
def test_bad_setting_is_named(
    tmp_path: Path, text: str, key: str, line: int | None, reason: str, allowed: str
) -> None:
    """A wrong setting is refused with its file, line, key, reason and what would be accepted."""
    if line is None:  # a literal string keeps its backslash: this one is fine
        file = tmp_path / "fine.toml"
        file.write_text(text)
        assert load(file).daemon.socket == "a\\u0001"
        return
    error = refusal(tmp_path, text)
    assert (error.key, error.line) == (key, line)
    assert reason in error.reason
    assert allowed in error.allowed
    assert f"{error.file}:{line}: {key}: {error.reason} (allowed: " in str(error)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[limits]\nsessions = 1\nsessions = 2\n", 3, "twice"),
        ("[limits]\n\n[limits]\n", 3, "twice"),
        ("[limits]\nsessions = 0660\n", 2, "not TOML"),
        ("[limits]\nsessions =", 2, "not TOML"),
        ("[limits]\nuids = " + "[" * 20_000, 2, "not TOML"),
        ("[limits]\nsessions = " + "1" * 5_000, 2, "not TOML"),
        ("#" * (FILE_BYTES_MAX + 1), None, "too long"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, line: int | None, reason: str) -> None:
    """A file that is too long, not TOML or says something twice is refused, with the line."""
    error = refusal(tmp_path, text)
    assert error.line == line
    assert reason in error.reason


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused with the line of the first bad byte."""
    file = tmp_path / "evoked.toml"
    file.write_bytes(b"[daemon]\n# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load(file)
    assert caught.value.line == 2


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """A file that is missing, or is a directory, is an error that names it, not the defaults."""
    with pytest.raises(ConfigError, match="No such file") as caught:
        load(tmp_path / "none.toml")
    assert caught.value.file == str(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)


def test_overrides_apply_over_the_file(tmp_path: Path) -> None:
    """Overrides go over the file, need no quotes around texts, and the last of two wins."""
    file = tmp_path / "evoked.toml"
    file.write_text("[limits]\nsessions = 5\nsession_pools = 6\n")
    overrides = [
        "limits.sessions=1",
        "limits.sessions = 7",
        "host.capacity=64MiB",
        "daemon.log='json'",
        "daemon.socket=/tmp/a=b",
        "access.uids=[1, 2]",
        "debug.inject=true",
    ]
    config = load(file, overrides)
    assert (config.limits.sessions, config.limits.session_pools) == (7, 6)
    assert config.host.capacity_bytes == 64 << 20
    assert config.daemon.log == "json"
    assert config.daemon.socket == "/tmp/a=b"
    assert config.access.uids == (1, 2)
    assert config.debug.inject is True


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("limits.sessions", "", "not an override"),
        ("sessions=3", "", "not an override"),
        ("limit.sessions=3", "limit", "not a section"),
        ("limits.sesions=3", "limits.sesions", "not a setting"),
        ("limits.sessions=many", "limits.sessions", "'many' is a text"),
        ("limits.sessions=", "limits.sessions", "'' is a text"),
        ("limits.sessions=1\nother=2", "limits.sessions", "is a text"),
        ("limits.sessions=70000", "limits.sessions", "70000 is out of range"),
        ("host.capacity=64", "host.capacity", "'64' has no unit"),
        ("debug.inject=True", "debug.inject", "'True' is a text"),
    ],
)
def test_bad_override_is_named(override: str, key: str, reason: str) -> None:
    """A wrong override is refused as one of --set, with the key and the reason."""
    with pytest.raises(ConfigError) as caught:
        load(overrides=[override])
    assert (caught.value.file, caught.value.line, caught.value.key) == ("--set", None, key)
    assert reason in caught.value.reason
