"""One real kernel for the tests of all modules, as long as they leave it alive and as it was.

Starting it, importing torch and what workers need takes longer than most modules of tests do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.cells import PRELUDE
from tests.support.kernels import Kernel, family, forkservers

# What a module's cells may change, and the next module finds as the first one did.
RENEW = """
def begin_again(
    names=frozenset(globals()) | {"begin_again"}, env=dict(os.environ), cwd=os.getcwd(),
    path=tuple(sys.path), threads=torch.get_num_threads(),
    handlers={one: signal.getsignal(one) for one in signal.valid_signals() - {signal.SIGINT}},
):
    for name in [name for name in globals() if name not in names and name[0] != "_"]:
        del globals()[name]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = path
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
"""


def prepared() -> Kernel:
    kernel = Kernel()
    reply = kernel.run(PRELUDE)
    assert not reply.error, reply.traceback
    return kernel


def begins_again(kernel: Kernel) -> bool:
    """Bring the kernel back to where it was; False when what was done to it cannot be undone."""
    try:
        reply = kernel.run("begin_again()", timeout_s=20)
        reply = reply if reply.error else kernel.run(PRELUDE, timeout_s=20)
    except TimeoutError:
        return False
    return not reply.error and family(kernel.pid) == forkservers(kernel.pid)


@pytest.fixture(scope="session")
def kernels() -> Iterator[list[Kernel]]:
    """The kernel that is shared, once there is one."""
    shared: list[Kernel] = []
    yield shared
    for kernel in shared:
        kernel.shutdown(now=True)


@pytest.fixture(scope="module")
def kernel(kernels: list[Kernel]) -> Kernel:
    if kernels and not begins_again(kernels[0]):
        kernels.pop().shutdown(now=True)
    if not kernels:
        kernels.append(prepared())
        reply = kernels[0].run(RENEW)
        assert not reply.error, reply.traceback
    return kernels[0]


@pytest.fixture
def own_kernel() -> Iterator[Kernel]:
    """A kernel for this test alone."""
    with prepared() as kernel:
        yield kernel
