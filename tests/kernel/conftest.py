"""One real kernel for the tests of a module, where the kernel survives them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.cells import PRELUDE
from tests.support.kernels import Kernel


def prepared() -> Kernel:
    kernel = Kernel()
    reply = kernel.run(PRELUDE)
    assert not reply.error, reply.traceback
    return kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with prepared() as kernel:
        yield kernel


@pytest.fixture
def own_kernel() -> Iterator[Kernel]:
    """A kernel for this test alone."""
    with prepared() as kernel:
        yield kernel
