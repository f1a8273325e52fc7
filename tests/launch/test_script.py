"""A launched function as a script: what is written down, in which order, and what is refused.

Cells are imitated by texts under the file names that old kernels give them; a real kernel does
the same in tests/kernel.
"""

from __future__ import annotations

import itertools
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from notebook_accel import FSDP, RunConfig, notebook_launcher
from notebook_accel.errors import ConfigError
from notebook_accel.events.history import History
from notebook_accel.events.records import Record
from notebook_accel.events.story import About, RankStory, Story
from notebook_accel.launch.remembered import remember
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.script import export, text_of
from notebook_accel.launch.script_seeds import unseeded
from notebook_accel.launch.start import Job

counter = itertools.count(1)
Cell = Callable[..., dict[str, Any]]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Run a cell as a notebook would: in ``__main__``, from a file that only linecache knows."""
    main = sys.modules["__main__"]

    def run(text: str, **values: Any) -> dict[str, Any]:
        filename = f"<ipython-input-{next(counter)}-abc>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        before = dict(vars(main))
        namespace = {**before, **values}
        exec(compile(text, filename, "exec", dont_inherit=True), namespace)
        for name, value in namespace.items():
            if before.get(name, counter) is not value and not name.startswith("__"):
                monkeypatch.setitem(vars(main), name, value)
        return namespace

    return run


def record(environment: dict[str, str] | None = None, **config: Any) -> Record:
    about = About(
        "20260101-000000-abc", "main", "1 CPU process", "fork", 1,
        config=config, environment=environment or {},
    )  # fmt: skip
    return Record(about, Story([RankStory()]), History, list)


def job(function: Any, *args: Any, **kwargs: Any) -> Job:
    return Job(function, args, kwargs)


def run_script(text: str, folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


def refused(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        text_of(job(function, *args, **kwargs), record())
    return str(caught.value)


def test_a_function_is_written_with_all_that_it_uses_of_other_cells(
    cell: Cell, tmp_path: Path
) -> None:
    cell("import json\nfrom math import tau as turn\nfrom collections import abc\nWIDTH = 3\n")
    cell("def area(r=WIDTH):\n    # half a turn\n    return turn / 2 * r * r\n")
    space = cell(
        "def main(times, *, unit='m'):\n"
        "    assert isinstance([], abc.Sequence)\n"
        "    return print(json.dumps([round(area(), 2)] * times + [unit]))\n"
    )
    text = text_of(job(space["main"], 2, unit="ft"), record())
    assert run_script(text, tmp_path) == '[28.27, 28.27, "ft"]\n'
    assert "# half a turn" in text, "the source is the person's, comments included"
    assert 'main(2, unit="ft")' in text or "main(2, unit='ft')" in text


def test_nothing_is_written_that_nobody_uses(cell: Cell) -> None:
    space = cell("import json\ndef other(): pass\nUNUSED = 1\ndef main(): pass\n")
    text = text_of(job(space["main"]), record())
    assert "json" not in text and "other" not in text and "UNUSED" not in text


def test_definitions_come_before_what_needs_them_at_once(cell: Cell, tmp_path: Path) -> None:
    space = cell(
        "def main(): print(Child().name, helper())\n"
        "class Base:\n    def twice(self): return helper() * 2\n"
        "DEFAULT = Base()\n"
        "def helper(kind=Base): return kind.__name__\n"
        "def mark(cls):\n    cls.name = 'marked'\n    return cls\n"
        "@mark\nclass Child(Base):\n    make = helper\n"
    )
    assert run_script(text_of(job(space["main"]), record()), tmp_path) == "marked Base\n"


def test_the_source_is_of_the_object_not_of_its_name_now(cell: Cell, tmp_path: Path) -> None:
    old = cell("def main(): print('as launched')\n")["main"]
    cell("def main(): print('changed since')\n")
    assert run_script(text_of(job(old), record()), tmp_path) == "as launched\n"


def test_a_closure_brings_what_it_closed_over(cell: Cell, tmp_path: Path) -> None:
    space = cell(
        "def make(lr):\n    def scaled(x):\n        return lr * x\n"
        "    def main():\n        print(scaled(4))\n    return main\nmain = make(0.5)\n"
    )
    assert run_script(text_of(job(space["main"]), record()), tmp_path) == "2.0\n"


def test_plain_values_of_many_kinds_are_written_down(cell: Cell, tmp_path: Path) -> None:
    space = cell(
        "import enum, functools, math\nfrom argparse import Namespace\nfrom dataclasses import "
        "dataclass\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
        "class Mode(enum.Enum):\n    FAST = 1\n"
        "@dataclass(frozen=True)\nclass Sizes:\n    width: int = 1\n    rates: tuple = ()\n"
        "def power(base, exponent): return base ** exponent\n"
        "values = [Mode.FAST, Sizes(2, (0.1, math.inf)), functools.partial(power, exponent=3),\n"
        "    {'a': {1}, 'b': (1,)}, Path('some') / 'where', set(), None, b'x', range(3),\n"
        "    SimpleNamespace(lr=1), Namespace(k='v'), -math.inf, 2j, frozenset({1})]\n"
        "def main(): print(values, values[2](2))\n"
    )
    import contextlib
    import io

    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        space["main"]()
    said = run_script(text_of(job(space["main"]), record()), tmp_path)
    without_address = [text.partition("functools.partial(<function")[0] for text in (said,)]
    assert without_address[0] == here.getvalue().partition("functools.partial(<function")[0]
    assert said.endswith(" 8\n")
    assert said.partition("}, ")[2] == here.getvalue().partition("}, ")[2]


def test_a_part_of_a_package_is_imported_if_it_is_reached_through_it(
    cell: Cell, tmp_path: Path
) -> None:
    space = cell(
        "import xml, xml.etree.ElementTree\nimport os.path as where\n"
        "def main(): print(xml.etree.ElementTree.fromstring('<a/>').tag, where.basename('b/c'))\n"
    )
    assert run_script(text_of(job(space["main"]), record()), tmp_path) == "a c\n"


def test_a_decorated_function_is_decorated_once(cell: Cell, tmp_path: Path) -> None:
    space = cell(
        "import functools\n"
        "def loud(function):\n    @functools.wraps(function)\n    def inner():\n"
        "        print('loud')\n        function()\n    return inner\n"
        "@loud\ndef main(): print('main')\n"
    )
    assert run_script(text_of(job(space["main"]), record()), tmp_path) == "loud\nmain\n"


def test_a_function_from_a_decorator_that_hides_it_is_refused(cell: Cell) -> None:
    space = cell(
        "def loud(function):\n    def inner():\n        function()\n    return inner\n"
        "@loud\ndef main(): pass\n"
    )
    assert "a function without source: of exec(), %%time or a decorator" in refused(space["main"])


def test_a_function_that_no_file_holds_is_refused(cell: Cell) -> None:
    hidden: dict[str, Any] = {}
    exec("def hidden(): pass", hidden)
    space = cell("def main(): return hidden()\n", hidden=hidden["hidden"])
    assert "hidden: a function without source: of exec()" in refused(space["main"])


def test_postponed_annotations_stay_postponed(cell: Cell, tmp_path: Path) -> None:
    space = cell("from __future__ import annotations\ndef main(x: NotThere = 1): print('ran')\n")
    assert run_script(text_of(job(space["main"]), record()), tmp_path) == "ran\n"


def test_settings_of_the_launch_hold_in_the_script_unless_the_command_line_says_otherwise(
    cell: Cell, tmp_path: Path
) -> None:
    space = cell("import os\ndef main(): print(os.environ['ACCELERATE_MIXED_PRECISION'])\n")
    text = text_of(job(space["main"]), record(mixed_precision="bf16"))
    assert run_script(text, tmp_path) == "bf16\n"


def test_the_strategy_that_a_launch_named_by_a_word_is_that_of_the_script(
    cell: Cell, tmp_path: Path
) -> None:
    space = cell(
        "from notebook_accel.config.resolve import resolve\nimport os\n"
        "def main():\n    config = resolve({}, os.environ)\n"
        "    print(config.strategy, config.fsdp_reshard_after_forward)\n"
    )
    config = RunConfig(strategy="fsdp", fsdp_reshard_after_forward=False)
    launched = record({**config.environment(), "OMP_NUM_THREADS": "7"}, strategy="fsdp")
    text = text_of(job(space["main"]), launched)
    assert run_script(text, tmp_path) == "fsdp False\n"
    assert "OMP_NUM_THREADS" not in text, "that is this machine's"


def test_the_launch_itself_tells_the_script_its_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", "off")
    config = RunConfig(strategy="fsdp", num_processes=1, device="cpu")
    run = notebook_launcher(trains_nothing, config=config)
    script = run.export_script(tmp_path / "word.py").read_text()
    assert 'os.environ.setdefault("ACCELERATE_USE_FSDP", "true")' in script
    run = notebook_launcher(
        trains_nothing, (), 1, device="cpu", strategy=FSDP(reshard_after_forward=False)
    )
    with pytest.raises(ConfigError) as caught:
        run.export_script(tmp_path / "wish.py")
    assert caught.value.what == (
        "trains_nothing was launched with strategy=FSDP(reshard_after_forward=False), which its "
        "script would not have"
    )
    assert caught.value.fix.startswith("write Accelerator(strategy=FSDP(reshard_after_forward=Fal")
    assert not (tmp_path / "wish.py").exists()


def trains_nothing() -> None: ...


def test_data_parallelism_asked_for_needs_no_word(cell: Cell) -> None:
    main = cell("def main(): pass\n")["main"]
    assert "DDP" not in text_of(job(main), record(strategy="DDP()"))
    with pytest.raises(ConfigError, match=r"launched with strategy=DDP\(bucket_cap_mb=1\)"):
        text_of(job(main), record(strategy="DDP(bucket_cap_mb=1)"))


def test_a_function_without_a_seed_is_exported_with_a_note(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    text_of(job(cell("def main(): pass\n")["main"]), record())
    assert "note: train.py draws random numbers of torch that" in capsys.readouterr().out
    space = cell("from notebook_accel import set_seed\ndef main(): set_seed(1)\n")
    text_of(job(space["main"]), record())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "libraries"),
    [
        ("torch.manual_seed(1)", []),
        ("torch.Generator().manual_seed(1)", ["torch"]),
        ("torch.manual_seed", ["torch"]),  # named, not called
        ("from torch import manual_seed as m; m(1)", []),
        ("accelerator.seed = 3", ["torch"]),
        ("torch.manual_seed(1), np.random.rand(2)", ["numpy"]),
        ("np.random.seed(1), torch.manual_seed(1), np.random.rand(2)", []),
        ("torch.manual_seed(1), np.random.default_rng(0).random()", []),
        ("np.random.default_rng(0)", ["torch"]),
        ("import numpy.random as r; r.shuffle([1])", ["numpy", "torch"]),
        ("from random import shuffle; torch.manual_seed(1), shuffle([1])", ["random"]),
        ("random.Random(1).random(), torch.manual_seed(2)", []),
        ("random.random(), np.random.rand(), set_seed(1)", []),
    ],
)
def test_a_script_is_told_which_librarys_numbers_nothing_seeds(
    text: str, libraries: list[str]
) -> None:
    head = "import random, torch\nimport numpy as np\n"
    assert unseeded(f"{head}def main():\n    {text}\n") == libraries


def test_names_that_every_module_has_are_the_scripts_own(cell: Cell, tmp_path: Path) -> None:
    text = text_of(job(cell("def main(): print('I am', __name__)\n")["main"]), record())
    assert "__name__ = " not in text and run_script(text, tmp_path) == "I am __main__\n"


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_everything_without_a_source_is_named_with_who_uses_it(cell: Cell) -> None:
    space = cell(
        "def load(): return data\ndef main(): return load(), model, rate(1)\n"
        "rate = lambda step: 0.1\n",
        data=SimpleNamespace(shape=(1000, 4), rows=object()),
        model=object(),
    )
    text = refused(space["main"])
    assert "main cannot be written as a script; these have no source:" in text
    assert "    data: an object made in the notebook, used by load" in text
    assert "    model: an object made in the notebook, used by main" in text
    assert "    rate: a lambda, which has no source of its own: write it as a def" in text
    assert "do:  make them inside main" in text


def test_data_made_in_a_cell_is_refused_and_data_made_by_a_function_is_not(cell: Cell) -> None:
    made = "import torch\nfrom torch.utils.data import TensorDataset\n"
    space = cell(f"{made}data = TensorDataset(torch.ones(2))\ndef main(): return data\n")
    assert "data: a TensorDataset made in the notebook, used by main" in refused(space["main"])
    space = cell(
        f"{made}def make_data(): return TensorDataset(torch.ones(2))\n"
        "def main(): return make_data()\n"
    )
    assert "def make_data(): return" in text_of(job(space["main"]), record())


def test_arguments_without_a_source_are_named(cell: Cell) -> None:
    space = cell("def main(first, data=None): pass\n")
    text = refused(space["main"], object(), data=iter([]))
    assert "args[0]: an object made in the notebook" in text
    assert "data: a list_iterator made in the notebook" in text


@pytest.mark.parametrize(
    ("launched", "kind"),
    [
        ("lambda: 1", "a lambda"),
        ("Trainer().fit", "a method of a Trainer"),
        ("Trainer.make", "a method of the class Trainer"),
        ("Trainer()", "an object that can be called, a Trainer"),
        ("partial(Trainer().fit)", "a method of a Trainer"),
        ("partial(lambda rows: rows, 3)", "a lambda"),
        ("len", "an object that can be called, a builtin_function_or_method"),
    ],
)
def test_what_no_def_can_define_is_refused_with_what_to_launch_in_its_place(
    cell: Cell, launched: str, kind: str
) -> None:
    space = cell(
        "from functools import partial\n"
        "class Trainer:\n"
        "    def fit(self): pass\n"
        "    __call__ = fit\n"
        "    @classmethod\n"
        "    def make(cls): pass\n"
        f"main = {launched}\n"
    )
    text = refused(space["main"])
    assert text.startswith(f"main cannot be written as a script: it is {kind}\n")
    assert "do:  write a function that makes what it needs and does the same, def main()" in text
    assert text.count("\n") == 2


def test_a_name_that_is_not_defined_is_named(cell: Cell) -> None:
    space = cell("def main(): return not_there\n")
    assert "not_there: not defined, used by main" in refused(space["main"])


def test_a_secret_is_not_written_into_a_file(cell: Cell) -> None:
    space = cell("API_KEY = 'abcdefgh12345'\ndef main(): return API_KEY\n")
    text = refused(space["main"])
    assert "API_KEY: a secret, used by main: read it from os.environ there" in text
    assert "abcdefgh" not in text


def test_a_magic_of_the_notebook_is_refused(cell: Cell) -> None:
    space = cell("def main(): get_ipython().system('ls')\n", get_ipython=lambda: None)
    assert "get_ipython: a magic of the notebook (% or !), used by main" in refused(space["main"])


def test_one_name_for_two_things_is_refused(cell: Cell) -> None:
    space = cell(
        "x = [1]\ndef reads(): return x\n"
        "def make():\n    x = [2]\n    def main(): return x, reads()\n    return main\n"
        "main = make()\n"
    )
    assert "x: two different things have this name" in refused(space["main"])


def test_a_value_too_long_for_a_script_is_refused(cell: Cell) -> None:
    space = cell("text = 'x' * 30_000\ndef main(): return text\n")
    assert "text: 30,002 characters long as text, used by main" in refused(space["main"])


# ── the file ──────────────────────────────────────────────────────────────────────────────────


def test_a_file_of_the_persons_is_not_overwritten_one_of_ours_is(
    cell: Cell, tmp_path: Path
) -> None:
    launched = job(cell("def main(): pass\n")["main"])
    path = tmp_path / "train.py"
    assert export(launched, record(), path) == path
    assert export(launched, record(), path) == path
    path.write_text("precious = 1\n")
    with pytest.raises(ConfigError, match=r"train\.py exists, and was not exported from a run"):
        export(launched, record(), path)
    assert path.read_text() == "precious = 1\n"


def test_a_place_that_takes_no_script_is_refused_in_words(cell: Cell, tmp_path: Path) -> None:
    launched = job(cell("def main(): pass\n")["main"])
    with pytest.raises(ConfigError, match=r"nope/train\.py") as caught:
        export(launched, record(), tmp_path / "nope" / "train.py")
    assert caught.value.why == "the system says: No such file or directory"
    with pytest.raises(ConfigError, match="the script cannot be written to"):
        export(launched, record(), tmp_path)


def test_a_result_that_lost_its_function_says_so(tmp_path: Path) -> None:
    result = RunResult([], History(), record().logs, 0.0, "", "", record(), None)
    with pytest.raises(ConfigError, match="this result does not know its function any more"):
        result.export_script(tmp_path / "train.py")


# ── what the notebook held at the launch ──────────────────────────────────────────────────────


FIRST = """
from dataclasses import dataclass

LR, layers = 0.01, [1, 2]

@dataclass
class Config:
    steps: int = 3

class Base:
    width = LR * 2

config = Config()

def scaled(x):
    return x * 2

def main(options, factor=1):
    print(LR, layers, config.steps, options, scaled(factor), Base().width)
"""


def test_a_script_has_the_values_and_functions_of_the_run_and_not_later_ones(
    cell: Cell, tmp_path: Path
) -> None:
    options = {"depth": [4]}
    namespace = cell(FIRST)
    run = notebook_launcher(namespace["main"], (options,), 1, device="cpu")
    options["depth"].append(5)
    exec(  # in the cells' own namespace, as a kernel does
        "LR = 5.0\nlayers.append(3)\nconfig.steps = 99\ndel Base\ndef scaled(x): return 'later'",
        namespace,
    )
    namespace["Base"] = None
    script = run.export_script(tmp_path / "train.py").read_text()
    assert run_script(script, tmp_path) == "0.01 [1, 2] 3 {'depth': [4]} 2 0.02\n"
    assert run.logs(0) == "0.01 [1, 2] 3 {'depth': [4]} 2 0.02\n"


def test_what_a_launch_remembers_of_a_notebook_is_small(cell: Cell) -> None:
    namespace = cell(
        "def main():\n    return data, long, word, nested, unused_by_name\n",
        data=SimpleNamespace(x=bytearray(9)),
        long=list(range(5000)),
        word="x" * 30_000,
        nested=[[1, {2: (3,)}]],
        unused=5,
    )
    then = remember(namespace["main"], (), {})
    assert then.names == {"nested": [[1, {2: (3,)}]]}
    assert then.names["nested"] is not namespace["nested"]


def test_a_list_that_holds_itself_is_not_remembered_and_does_no_harm(cell: Cell) -> None:
    loop: list[Any] = []
    loop.append(loop)
    namespace = cell("def main():\n    return loop\n", loop=loop)
    assert remember(namespace["main"], (loop,), {}).names == {}
