"""Measure the index and the published table: python benchmarks/bench_index.py [blocks]."""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evoke.core import native

CHAIN_BLOCKS = 512
NAMESPACE = bytes(32)
ROOT = bytes(32)


def median_seconds(measure: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        measure()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def total_seconds(measure: Callable[[bytes], object], chains: list[bytes]) -> float:
    start = time.perf_counter()
    for keys in chains:
        measure(keys)
    return time.perf_counter() - start


def report(name: str, value: float, unit: str) -> None:
    print(f"{name:42} {value:12.2f} {unit}")


def measure_keys() -> None:
    tokens = np.arange(16 * CHAIN_BLOCKS, dtype=np.uint32)
    for portable in (False, True):
        seconds = median_seconds(
            lambda portable=portable: native.chain_keys(  # type: ignore[misc]
                NAMESPACE, tokens, 16, ROOT, [], portable=portable
            ),
            200,
        )
        report(f"chain_keys, 512 blocks{', portable' if portable else ''}", seconds * 1e6, "us")


def measure_lookups(index: native.Index, secret: bytes, chains: list[bytes]) -> None:
    view = native.TableView(index.table_fd())
    for count in (1, 64, 512):
        for what, keys in (("hits", chains), ("misses", [k[::-1] for k in chains])):
            cut = [one[: 32 * count] for one in keys]
            times = []
            for number in range(2000):
                one = cut[number * 7919 % len(cut)]
                start = time.perf_counter()
                tiers = view.lookup(secret, one)
                times.append(time.perf_counter() - start)
                assert tiers.all() == (what == "hits")
            p50, p99 = np.percentile(times, [50, 99]) * 1e6
            report(f"lookup of {count} keys, {what}, p50", p50, "us")
            report(f"lookup of {count} keys, {what}, p99", p99, "us")


def measure_rates(index: native.Index, namespace: int, chains: list[bytes]) -> None:
    blocks = len(chains) * CHAIN_BLOCKS
    refs = np.arange(CHAIN_BLOCKS, dtype=np.uint64)
    lengths = np.full(CHAIN_BLOCKS, 368_640, np.uint32)
    seconds = total_seconds(
        lambda keys: index.insert_many(namespace, keys, 0, ROOT, refs, lengths, refs, 1), chains
    )
    report("insert_many, 512 at a time", blocks / seconds / 1e6, "M blocks/s")
    report("metadata", index.metadata_bytes() / len(index), "bytes/block")
    seconds = total_seconds(lambda keys: index.find(namespace, keys), chains)
    report("find, 512 at a time", blocks / seconds / 1e6, "M blocks/s")
    seconds = total_seconds(lambda keys: index.touch(index.find(namespace, keys)), chains)
    report("find and touch, 512 at a time", blocks / seconds / 1e6, "M blocks/s")
    seconds = total_seconds(lambda keys: index.touch(index.find(namespace, keys[-32:])), chains)
    report("touch of a tail and its 511 ancestors", seconds / len(chains) * 1e6, "us")


def measure_victims(index: native.Index, held: NDArray[np.uint32]) -> None:
    index.hold(held)
    seconds = median_seconds(lambda: index.victims(1000), 50)
    report("victims, 1000 at a time", 1000 / seconds / 1e6, "M blocks/s")
    index.unhold(held)
    seconds = median_seconds(lambda: index.victims(1000), 50)
    report("victims, 1000, nothing held", 1000 / seconds / 1e6, "M blocks/s")
    start = time.perf_counter()
    blocks = 0
    while len(index):
        rows = index.victims(1000)
        blocks += len(rows)
        index.erase(rows)
    report("victims and erase", blocks / (time.perf_counter() - start) / 1e6, "M blocks/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", type=int, nargs="?", default=500_000)
    blocks = parser.parse_args().blocks
    count = max(1, blocks // CHAIN_BLOCKS)
    random = np.random.default_rng(1)
    chains = [random.bytes(32 * CHAIN_BLOCKS) for _ in range(count)]
    print(f"{count * CHAIN_BLOCKS} blocks in chains of {CHAIN_BLOCKS}")
    measure_keys()
    index = native.Index()
    namespace, secret = index.add_namespace(1)
    measure_rates(index, namespace, chains)
    measure_lookups(index, secret, chains)
    start = time.perf_counter()
    index.check()
    report("check", (time.perf_counter() - start) / len(index) * 1e6, "us/block")
    measure_victims(index, index.find(namespace, b"".join(k[-32:] for k in chains[: count // 10])))


if __name__ == "__main__":
    main()
