"""Boots the checker in virtual machines with a memory-only NUMA node: once ordinary memory, once
hot-added and online as movable. Ends with 0 when the daemon's placement code saw what is there.

    boot.py --kernel VMLINUZ --checker FILE [--work DIR]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ARENA_BYTES = 32 << 20
BOOT_SECONDS = 240
MAIN_MIB = 512
NODE_MIB = 256

Report = dict[str, Any]


def initramfs(checker: bytes) -> bytes:
    """A compressed archive (cpio, newc format) whose only file is /init."""
    out = bytearray()
    for name, mode, data in (("init", 0o100755, checker), ("TRAILER!!!", 0, b"")):
        fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return gzip.compress(bytes(out), 1)


def machine(hot_added: bool) -> list[str]:
    memory = [
        *("-object", f"memory-backend-ram,id=m0,size={MAIN_MIB}M"),
        *("-object", f"memory-backend-ram,id=m1,size={NODE_MIB}M"),
        *("-numa", "node,nodeid=0,cpus=0-1,memdev=m0"),
    ]
    if hot_added:
        memory += ["-m", f"{MAIN_MIB}M,slots=2,maxmem=4G", "-numa", "node,nodeid=1"]
        memory += ["-device", "pc-dimm,id=d1,memdev=m1,node=1"]
    else:
        memory += ["-m", str(MAIN_MIB + NODE_MIB), "-numa", "node,nodeid=1,memdev=m1"]
    return [*memory, "-numa", "dist,src=0,dst=1,val=30"]


def boot(kernel: Path, archive: Path, serial: Path, hot_added: bool) -> list[Report]:
    words = "console=ttyS0 quiet panic=-1 loglevel=4"
    words += " memhp_default_state=online_movable" if hot_added else ""
    command = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi"]
    command += ["-cpu", "max", "-smp", "2", *machine(hot_added), "-kernel", str(kernel)]
    command += ["-initrd", str(archive), "-append", words, "-serial", f"file:{serial}"]
    command += ["-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none"]
    subprocess.run(command, check=True, timeout=BOOT_SECONDS, stdin=subprocess.DEVNULL)
    text = serial.read_text(errors="replace")
    reports = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("check: ")]
    if not reports or reports[-1]["what"] != "end":
        raise SystemExit(f"the checker did not end:\n{text[-2000:]}")
    return reports


def require(true: bool, sentence: str, of: object) -> None:
    print(f"{'ok  ' if true else 'FAIL'} {sentence}")
    if not true:
        raise SystemExit(f"     {of}")


def judge(reports: list[Report], hot_added: bool) -> None:
    def all_of(what: str) -> list[Report]:
        return [report for report in reports if report["what"] == what]

    nodes = {report["number"]: report for report in all_of("node")}
    require(set(nodes) == {0, 1} and not nodes[1]["has_cpu"], "a node without CPUs is seen", nodes)
    movable = nodes[1]["movable_bytes"] > 0
    require(movable == hot_added, "whether its memory is movable is seen", nodes[1])
    for report in all_of("touched"):
        on_node = report["on_node_bytes"] == ARENA_BYTES
        require(on_node, f"a bound {report['backing']} arena lies on its node", report)
    for pin, report in zip(all_of("pin"), all_of("pinned"), strict=True):
        kept = report["on_node_bytes"] == ARENA_BYTES
        if hot_added:
            seen = pin["error"] != 0 or report["elsewhere_bytes"] > 0
            require(seen, "a pin that moves the pages is found out or refused", (pin, report))
        else:
            require(pin["error"] == 0 and kept, "and stays there when it is pinned", (pin, report))
    (unbound,) = all_of("unbound")
    require(unbound["elsewhere_bytes"] == ARENA_BYTES, "misplaced memory is counted", unbound)
    require(all_of("absent node")[0]["error"] != 0, "a node that is absent is refused", reports)
    require(all_of("too large")[0]["error"] != 0, "a node that is too small is refused", reports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", type=Path, required=True)
    parser.add_argument("--checker", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        archive = Path(work, "initramfs.gz")
        archive.write_bytes(initramfs(arguments.checker.read_bytes()))
        for hot_added in (False, True):
            kind = "hot-added and movable" if hot_added else "ordinary"
            print(f"numa: a node of memory only, {kind}", flush=True)
            serial = Path(work, "serial.log")
            judge(boot(arguments.kernel, archive, serial, hot_added), hot_added)
    print("numa: passed")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
