"""What crosses the process border, both ways: functions, classes, exceptions, big data."""

from __future__ import annotations

import pytest

from tests.kernel.cells import launch

both_methods = pytest.mark.parametrize("method", ["fork", "forkserver"])

CLASSES = """
class Net(nn.Module):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
    def __init__(self):
        super().__init__()
        self.head = Net.Head()
    def forward(self, x):
        return x * self.head.weight * scale()

class MyError(Exception):
    def __init__(self, code, file):
        super().__init__(f"code {code}")
        self.code = code
        self.file = file

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Outer:
    class Inner(ValueError):
        pass

def scale():
    return 3.0
"""


@pytest.fixture(scope="module", autouse=True)
def classes(kernel):
    assert not kernel.run(CLASSES).error


@both_methods
def test_a_module_of_a_cell_comes_back_as_the_kernels_own_class(kernel, method):
    kernel.run("def train():\n    net = Net()\n    net.head.weight.data += rank()\n    return net")
    reply = kernel.run(
        launch("train", method)
        + "\nprint([type(net) is Net and type(net.head) is Net.Head for net in run])"
        "\nprint(run[1](torch.ones(2)).tolist(), run[1].head.weight.requires_grad)"
    )
    assert "[True, True]\n[6.0, 6.0] True" in reply.out, reply.messages


@both_methods
def test_a_class_made_anew_between_launches_is_the_one_that_comes_back(kernel, method):
    kernel.run("class Point:\n    version = 1\ndef make():\n    return Point()")
    assert not kernel.run(launch("make", method)).error
    kernel.run("old = Point\nclass Point:\n    version = 2")
    reply = kernel.run(
        launch("make", method)
        + "\nprint(type(run[0]) is Point, type(run[0]) is old, run[0].version)"
    )
    assert "True False 2" in reply.out, reply.messages


@both_methods
def test_an_exception_of_a_cell_is_caught_by_its_class(kernel, method):
    kernel.run("def train():\n    raise MyError(7, threading.Lock())")
    reply = kernel.run(
        f"try:\n    {launch('train', method)}\nexcept MyError as error:\n"
        "    print(type(error) is MyError, error, error.code, hasattr(error, 'file'))"
    )
    assert "True code 7 7 False" in reply.out, reply.messages


@both_methods
def test_a_nested_exception_and_its_cause_come_back(kernel, method):
    kernel.run(
        "def train():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise Outer.Inner('inner') from error"
    )
    reply = kernel.run(
        f"try:\n    {launch('train', method)}\nexcept Outer.Inner as error:\n"
        "    print('ZeroDivisionError: division by zero' in str(error.__cause__))"
    )
    assert "True" in reply.out, reply.messages


@both_methods
def test_an_exception_whose_words_fail_is_still_reported(kernel, method):
    kernel.run("def train():\n    raise Silent()")
    reply = kernel.run(
        f"try:\n    {launch('train', method)}\nexcept Silent as error:\n"
        "    print(error.__cause__, *error.__notes__)"
    )
    assert "raised in rank" in reply.out or "raised in 2 ranks" in reply.out, reply.messages
    assert "raise Silent()" in reply.out


@both_methods
def test_an_exception_that_cannot_be_rebuilt_is_told_by_its_traceback(kernel, method):
    kernel.run(
        "def train():\n"
        "    class Odd(Exception):\n"
        "        def __reduce_ex__(self, protocol):\n"
        "            raise TypeError('stays here')\n"
        "        def __new__(cls, *args):\n"
        "            if os.environ.get('RANK') is None:\n"
        "                raise TypeError('only in a worker')\n"
        "            return super().__new__(cls, *args)\n"
        "    raise Odd('a fact')"
    )
    reply = kernel.run(launch("train", method))
    assert reply.error == "WorkerFailed"
    assert "raised Odd: a fact" in reply.traceback
    assert "Cell In[" in reply.traceback and "raise Odd('a fact')" in reply.traceback


CALLABLES = {
    "a function": "def call(x=4):\n    return x + offset",
    "a lambda": "call = lambda: 4 + offset",
    "a closure": (
        "def outer():\n    four = 4\n    class Local:\n        value = 4\n"
        "    def inner():\n        return Local.value + offset + four - 4\n    return inner\n"
        "call = outer()"
    ),
    "a bound method": (
        "class Trainer:\n    four = 4\n    def run(self):\n        return self.four + offset\n"
        "call = Trainer().run"
    ),
    "a partial": "call = functools.partial(lambda a, b: a + b + offset, 1, b=3)",
    "a callable object": (
        "class Trainer:\n    def __call__(self):\n        return 4 + offset\ncall = Trainer()"
    ),
    "a decorated function": (
        "def twice(f):\n    @functools.wraps(f)\n    def g():\n        return f() + offset\n"
        "    return g\n@twice\ndef call():\n    return 4"
    ),
    "a cached function": "@functools.lru_cache\ndef call():\n    return 4 + offset",
    "a class with a cached property": (
        "class Four:\n    @functools.cached_property\n    def value(self):\n        return 4\n"
        "def call():\n    return Four().value + offset"
    ),
    "a class": "class call(int):\n    def __new__(cls):\n        return int(4 + offset)",
    "a recursive function": "def call(n=4):\n    return offset if n == 0 else 1 + call(n - 1)",
    "a function that calls another": "def four(): return 4\ndef call(): return four() + offset",
}


@both_methods
@pytest.mark.parametrize("code", CALLABLES.values(), ids=CALLABLES.keys())
def test_anything_that_can_be_called_can_be_launched(kernel, method, code):
    kernel.run("offset = 3\n" + code)
    reply = kernel.run(launch("call", method, "; print(run.values)"))
    assert "[7, 7]" in reply.out, reply.messages


@both_methods
def test_a_loader_with_a_local_class_and_a_lambda_works_in_workers(kernel, method):
    kernel.run(
        "def outer(k):\n    class Rows(Dataset):\n"
        "        def __len__(self):\n            return 4\n"
        "        def __getitem__(self, i):\n            return i * k\n"
        "    def train():\n"
        "        loader = DataLoader(Rows(), num_workers=1, collate_fn=lambda rows: rows)\n"
        "        return list(loader)[rank()::2]\n    return train\ncall = outer(3)"
    )
    reply = kernel.run(launch("call", method, "; print(run.values)"))
    assert "[[[0], [6]], [[3], [9]]]" in reply.out, reply.messages


@both_methods
def test_a_result_that_cannot_travel_is_named(kernel, method):
    kernel.run("def train():\n    return {'lock': threading.Lock()}")
    reply = kernel.run(launch("train", method))
    assert reply.error == "LaunchError"
    assert "returned at ['lock'] (lock) cannot travel to the notebook: " in reply.traceback
    assert "cloudpickle" not in reply.traceback
    assert "'_thread.lock'" in reply.traceback
    assert "return tensors, modules, numbers, strings" in reply.traceback


@both_methods
def test_arguments_and_globals_changed_by_workers_are_unchanged_in_the_kernel(kernel, method):
    kernel.run(
        "seen = []\nmodel = nn.Linear(2, 1)\nbefore = model.weight.clone()\n"
        "def train(model, data):\n    seen.append(1); data[:] = 5; model.weight.data.zero_()\n"
        "    return len(seen), data.sum().item()\ndata = torch.zeros(100)"
    )
    for num_processes in (1, 2):
        reply = kernel.run(
            f"run = notebook_launcher(train, (model, data), num_processes={num_processes}, "
            f"start_method={method!r})\n"
            "print(run.values, seen, torch.equal(model.weight, before), data.sum().item())"
        )
        expected = [(1, 500.0)] * num_processes
        assert f"{expected} [] True 0.0" in reply.out, reply.messages


MEASURE = """
import numpy as np, psutil
rows = torch.ones(128, 1024, 1024)  # 512 MB
table = np.ones((64, 1024, 1024))  # 512 MB
def train():
    total = rows[::32].sum().item() + table[::32].sum()
    for i in range(0, 128, 8):
        total += rows[i].sum().item() + table[i // 2].sum()
    connect()  # all ranks have read their part
    private = psutil.Process().memory_full_info().uss >> 20
    connect_again = dist.barrier()
    return int(private)
"""


@both_methods
def test_a_dataset_of_1_gb_in_a_global_costs_no_copy_per_worker(kernel, method):
    assert not kernel.run(MEASURE).error
    reply = kernel.run(
        launch("train", method, "; print('MB', max(run.values))", num_processes=4), timeout_s=60
    )
    assert int(reply.out.rpartition("MB ")[2]) < 200, reply.messages
    reply = kernel.run("del rows, table")
    assert not reply.error


@both_methods
def test_a_result_of_200_mb_comes_back_from_every_rank(kernel, method):
    kernel.run("def train():\n    return torch.full((50, 1024, 1024), float(rank()))")
    reply = kernel.run(
        launch("train", method, "; print([(v.shape, v[-1, -1, -1].item()) for v in run])")
    )
    assert "(torch.Size([50, 1024, 1024]), 1.0)]" in reply.out, reply.messages
    kernel.run("del run")
