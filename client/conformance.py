"""Conformance kit: a pytest plug-in that tests a runner's use of evoke.

    pytest -p evoke.client.conformance --evoke-runner my_engine/evoke_adapter.py:make

`make(options)` gives a Runner (evoke.client.conformance_runner says what that is; docs/integrate.md
has an example). The cases start daemons of their own, and stop and kill them and the runner; each
fails with the sentence that its docstring states. -k chooses among them.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest

from evoke.client.conformance_host import Answer, Daemon, Failed, RunnerProcess
from evoke.client.conformance_runner import BLOCKS_MIN, Generated, Options, Runner, load_factory

__all__ = ["Bench", "Generated", "Kit", "Options", "Runner"]

_CASES: Final = "evoke.client.conformance_cases"
_NODE: Final = "evoke-conformance"
_MIB: Final = 1 << 20
_SHARED_BLOCKS: Final = 1000

pytest.register_assert_rewrite(_CASES)


class Kit:
    """Of one run: the runner without a daemon, whose answers are right by definition, and two
    runners at one daemon for the cases that leave it as it was."""

    def __init__(self, factory: str, root: Path) -> None:
        self.factory, self.root = factory, root
        self._random = np.random.default_rng(0)
        self._alone: dict[str, RunnerProcess] = {}
        self._known: dict[tuple[str, tuple[int, ...], int], Answer] = {}
        self._running: list[RunnerProcess] = []
        self._directories = 0
        self._daemons: list[Daemon] = []

    def start(self) -> None:
        """Start the processes; close() ends them also when this fails."""
        self.plain = self._without_daemon("1")
        self.block_tokens = self.plain.block_tokens
        least = BLOCKS_MIN * self.block_tokens
        if self.plain.context_tokens < least:
            raise ValueError(f"context_tokens: {self.plain.context_tokens}, wanted {least}")
        self.daemon = self.new_daemon(max(64 * _MIB, _SHARED_BLOCKS * self.plain.block_bytes))
        self._daemons.append(self.daemon)
        self.daemon.start()
        self.writer, self.reader = (self.new_runner(self.daemon.directory) for _ in range(2))

    def new_daemon(self, capacity_bytes: int = 0) -> Daemon:
        """Not started. capacity_bytes: rounded up to 2 MiB; 0: room for a few prompts."""
        wanted = max(capacity_bytes or 100 * self.plain.block_bytes, 2 * _MIB)
        return Daemon(self.new_directory(), -(-wanted // (2 * _MIB)) * 2 * _MIB)

    def new_directory(self) -> Path:
        """Empty, with a short path: sockets are made in it."""
        self._directories += 1
        directory = self.root / str(self._directories)
        directory.mkdir()
        return directory

    def new_runner(self, directory: Path, **options: str) -> RunnerProcess:
        """Killed at the end of the run if it is still there."""
        runner = RunnerProcess(self.factory, Options(str(directory), **options))
        self._running.append(runner)
        return runner

    def prompt(self, count: int) -> list[int]:
        """`count` tokens that no case has used before."""
        return [int(t) for t in self._random.integers(0, self.plain.vocabulary, count)]

    def expected(self, prompt: list[int], steps: int, weights_epoch: str = "1") -> Answer:
        """The answer that is right: the runner's own, without a daemon."""
        key = (weights_epoch, tuple(prompt), steps)
        if key not in self._known:
            self._known[key] = self._without_daemon(weights_epoch).generate(prompt, steps)
        return self._known[key]

    def close(self) -> None:
        """End everything that the kit started for the whole run."""
        for runner in self._running:
            runner.kill()
        for daemon in self._daemons:
            daemon.kill()

    def _without_daemon(self, weights_epoch: str) -> RunnerProcess:
        if weights_epoch not in self._alone:
            runner = self.new_runner(self.new_directory(), weights_epoch=weights_epoch)
            self._alone[weights_epoch] = runner
        return self._alone[weights_epoch]


class Bench:
    """Of one case: a daemon of its own, and runners at it."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.daemon = kit.new_daemon()
        self._runners: list[RunnerProcess] = []

    def resize(self, capacity_bytes: int) -> None:
        """Another daemon, before it is started."""
        self.daemon = self._kit.new_daemon(capacity_bytes)

    def runner(self, **options: str) -> RunnerProcess:
        self._runners.append(self._kit.new_runner(self.daemon.directory, **options))
        return self._runners[-1]

    def close(self) -> None:
        for runner in self._runners:
            runner.kill()
        self.daemon.kill()


# ---------------------------------------------------------------- pytest


class _Cases(pytest.Module):
    def _getobj(self) -> ModuleType:
        return importlib.import_module(_CASES)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("evoke", "conformance of a runner that uses evoke")
    group.addoption(
        "--evoke-runner",
        metavar="FACTORY",
        help="module:name or path/file.py:name of what makes the runner",
    )


def pytest_configure(config: pytest.Config) -> None:
    factory = config.getoption("evoke_runner")
    if factory is None:
        return
    try:
        load_factory(factory)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args = []  # the kit's cases only, not what lies in this directory


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.getoption("evoke_runner") is None:
        return
    place = importlib.import_module(_CASES).__file__
    assert place is not None
    module: Any = _Cases.from_parent(session, path=Path(place), nodeid=_NODE)
    items += list(session.genitems(module))


@pytest.fixture(scope="session")
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """What all cases share."""
    with tempfile.TemporaryDirectory(prefix="evoke-") as root:
        made = Kit(request.config.getoption("evoke_runner"), Path(root))
        try:
            _start(made)
            yield made
        finally:
            made.close()


def _start(kit: Kit) -> None:
    """Ends the whole run, with one reason, when there is nothing to compare answers with."""
    try:
        kit.start()
    except (Failed, ValueError) as error:
        reason = f"evoke: the runner must start, with and without a daemon: {error}"
        pytest.exit(reason, returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture
def bench(kit: Kit) -> Iterator[Bench]:
    """A daemon, not started, and runners, gone after the case."""
    made = Bench(kit)
    try:
        yield made
    finally:
        made.close()
