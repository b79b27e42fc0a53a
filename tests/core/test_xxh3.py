"""The checksum of stored blocks is XXH3-64, however the bytes reach it."""

from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from evoke.core import native

KERNELS = list(native.self_test(4))
BYTES = np.random.default_rng(3).integers(0, 256, 1 << 16, dtype=np.uint8)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.kernel_name()
    native.use_kernel(request.param)
    yield request.param
    native.use_kernel(before)


def expected(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data.ljust(256, b"\0"))


def test_agrees_with_the_xxhash_package(kernel: str) -> None:
    """Every length from 256 to 5000 bytes has the sum that the xxhash package computes."""
    data = BYTES.tobytes()
    for length in range(256, 5001):
        assert native.xxh3_64(data[:length]) == xxhash.xxh3_64_intdigest(data[:length]), length


def test_short_buffers_are_padded(kernel: str) -> None:
    """A buffer below 256 bytes has the sum of its bytes followed by zeros up to 256."""
    for length in range(256):
        data = BYTES[:length].tobytes()
        assert native.xxh3_64(data) == expected(data), length


def test_any_contiguous_buffer() -> None:
    """The sum does not depend on the kind, item size or alignment of the buffer."""
    words = BYTES.view(np.uint64)
    assert native.xxh3_64(words) == expected(BYTES.tobytes())
    for shift in range(1, 65):
        assert native.xxh3_64(memoryview(BYTES.tobytes())[shift:]) == expected(
            BYTES[shift:].tobytes()
        )


def test_refuses_what_is_not_contiguous() -> None:
    """A strided buffer is a ValueError that names the argument."""
    with pytest.raises(ValueError, match="data"):
        native.xxh3_64(BYTES[::2])


def make_layout(run_lengths: list[int], gap: int) -> native.Layout:
    """One slot of runs with gap bytes between them."""
    starts = np.cumsum([0, *[length + gap for length in run_lengths]])
    segments: list[tuple[int, int, list[tuple[int, int]], int]] = [
        (int(at), 0, [], length) for at, length in zip(starts, run_lengths, strict=False)
    ]
    return native.Layout(segments, 1, int(starts[-1]))


lengths = st.one_of(
    st.integers(1, 70),
    st.integers(1, 5000),
    st.sampled_from([64, 128, 256, 512, 960, 1024, 1088, 2048, 4096, 4160]),
)
splits = st.one_of(
    st.lists(lengths, min_size=1, max_size=40),
    st.lists(st.integers(1, 80).map(lambda n: 64 * n), min_size=1, max_size=12),
)


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=150, deadline=None)
@given(run_lengths=splits, gap=st.sampled_from([0, 1, 31, 32, 64, 100]), skew=st.integers(0, 64))
def test_run_boundaries_do_not_matter(
    name: str, run_lengths: list[int], gap: int, skew: int
) -> None:
    """A block of runs of any lengths is summed as one contiguous stream, in both directions."""
    before = native.kernel_name()
    native.use_kernel(name)
    layout = make_layout(run_lengths, gap)
    end = skew + sum(run_lengths) + gap * len(run_lengths)
    pool = np.resize(BYTES, end)[skew:]
    starts = np.cumsum([0, *[length + gap for length in run_lengths]])
    runs = zip(starts, run_lengths, strict=False)
    stream = b"".join(pool[at : at + length].tobytes() for at, length in runs)
    out = np.zeros(len(stream), np.uint8)
    slots = np.zeros(1, np.uint32)
    assert layout.gather(pool.ctypes.data, slots, out).tolist() == [expected(stream)]
    assert out.tobytes() == stream
    target = np.zeros(end, np.uint8)[skew:]
    assert layout.scatter(target.ctypes.data, slots, stream).tolist() == [expected(stream)]
    again = np.zeros(len(stream), np.uint8)
    layout.gather(target.ctypes.data, slots, again)
    assert again.tobytes() == stream
    native.use_kernel(before)


def test_self_test_chooses_a_measured_kernel() -> None:
    """The self-test leaves the fastest of the kernels it measured in use."""
    rates = native.self_test(8)
    assert all(rate > 0 for rate in rates.values())
    assert native.kernel_name() == max(rates, key=lambda name: rates[name])


def test_unknown_kernel_is_refused() -> None:
    """A kernel that this CPU lacks is a ValueError and changes nothing."""
    before = native.kernel_name()
    with pytest.raises(ValueError, match="no_such"):
        native.use_kernel("no_such")
    assert native.kernel_name() == before
