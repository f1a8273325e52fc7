"""One loop, the same losses: from a cell, from launch on one and two ranks, by torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed.run import get_args_parser

from notebook_accel import notebook_launcher
from tests.support.launches import begin, clean_env, launch, wait_for

LOOP = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(folder=None):
    from notebook_accel import Accelerator, set_seed

    set_seed(0)
    accelerator = Accelerator(log_with="jsonl" if folder else None, project_dir=folder)
    accelerator.init_trackers("quickstart") if folder else None
    x = torch.randn(256, 20)
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=32 // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(2):
        for batch, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), label)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            accelerator.log({"loss": losses[-1]}, step=len(losses)) if folder else None
    if folder:
        accelerator.save_state(os.path.join(folder, "state"))
        accelerator.load_state(os.path.join(folder, "state"))
        accelerator.end_training()
        files = [file for _, _, files in os.walk(folder) for file in files]
        assert not accelerator.is_main_process or any("jsonl" in file for file in files), files
    accelerator.print("losses:" + json.dumps([losses, accelerator.num_processes]))
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
"""

NOTEBOOK = Path(__file__).parents[2] / "notebooks/1_beginner/01_quickstart.py"
# The notebook shows no losses: they are heard where it computes them.
HEARD = """
heard, compute = [], how_wrong


def how_wrong(guess, label):
    loss = compute(guess, label)
    heard.append(loss.detach())
    return loss


main()
accelerator = Accelerator()
means = accelerator.reduce(torch.stack(heard), "mean")
accelerator.print("losses:" + json.dumps([means.tolist(), accelerator.num_processes]))
"""


def losses(done: subprocess.CompletedProcess[str], num: int) -> list[float]:
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("losses:")]
    found, num_processes = json.loads(line.removeprefix("losses:"))
    assert num_processes == num
    return [float(one) for one in found]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "quickstart.py"
    path.write_text(LOOP)
    return path


@pytest.fixture(scope="module")
def alone(script: Path) -> list[float]:
    return losses(launch("--cpu", script), 1)


def test_two_processes_of_a_launch_have_the_losses_of_one(
    script: Path, alone: list[float], tmp_path: Path
) -> None:
    done = launch("--cpu", "--num_processes", "2", script, tmp_path)
    assert losses(done, 2) == pytest.approx(alone, rel=1e-4)
    assert (tmp_path / "state" / "model.safetensors").exists()


def test_a_cells_launcher_has_the_losses_of_a_launch(script: Path, alone: list[float]) -> None:
    cell: dict[str, object] = {"__name__": "__main__"}
    exec(compile(script.read_text().partition("if __name__")[0], script, "exec"), cell)
    run = notebook_launcher(cell["main"], num_processes=2, device="cpu")
    assert run[0] == pytest.approx(alone, rel=1e-4)


def quickstart(batch_size: int) -> str:
    """Give the cells of the quickstart that its launch needs, for one round instead of twelve."""
    cells = NOTEBOOK.read_text().partition("# ## 5. Go")[0]
    for written, instead in (
        ("range(12)", "range(1)"),
        ("range(3)", "range(0)"),  # the ordinary loop, which comes before
        ("batch_size=8,", f"batch_size={batch_size},"),
        ('print(f"epoch {epoch}: the last', '0 and print(f"epoch {epoch}: the last'),
    ):
        assert written in cells
        cells = cells.replace(written, instead)
    return "import json\n" + cells


def test_the_quickstarts_own_main_has_the_same_losses_wherever_it_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"):  # which scikit-learn would set
        monkeypatch.setenv(name, "TRUE")
    (tmp_path / "one.py").write_text(quickstart(16) + HEARD)
    (tmp_path / "two.py").write_text(quickstart(8) + HEARD)
    one = losses(launch("--cpu", "one.py", cwd=tmp_path, MPLBACKEND="agg"), 1)
    words = ["--cpu", "--num_processes", "2", "two.py"]
    two = losses(launch(*words, cwd=tmp_path, MPLBACKEND="agg"), 2)
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(quickstart(8), NOTEBOOK, "exec"), cell)
    history = notebook_launcher(cell["main"], num_processes=2, device="cpu").history["loss"]
    assert len(one) == len(two) == len(history) == 94
    whole = slice(0, 93)  # the last 12 pictures are 8 and 4 for two: a mean of means
    assert two[whole] == pytest.approx(one[whole], rel=1e-3)
    assert list(history)[whole] == pytest.approx(two[whole], rel=1e-3)


def test_what_a_launch_was_given_reaches_an_accelerator(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from notebook_accel import Accelerator\n"
        "one, other = Accelerator(), Accelerator(gradient_accumulation_steps=2)\n"
        "print(one.gradient_accumulation_steps, other.gradient_accumulation_steps,"
        " one.mixed_precision, one.num_processes, one.device)"
    )
    words = ["--cpu", "--gradient_accumulation_steps", "4", "--mixed_precision", "bf16"]
    done = launch(*words, "script.py", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "4 2 bf16 1 cpu", done.stderr


def test_what_newer_torchruns_take_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import os, sys\nprint('apple', os.environ['RANK'], os.environ['LOCAL_RANK'], sys.argv[1:])"
    )
    words = ["--cpu", "--num_processes", "2", "--virtual-local-rank", "--run_path"]
    words += ["--duplicate_stdout_filters", "apple", "--log_dir", "logs", "--tee", "3"]
    if "--virtual-local-rank" not in get_args_parser()._option_string_actions:
        pytest.skip("an older torch has none of them")
    done = launch(*words, "s.py", "-x", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "apple 0 0 ['-x', '1']" in done.stdout and "apple 1 0 ['-x', '1']" in done.stdout
    module = launch("--cpu", "--num_processes", "2", "--run_path", "-m", "timeit")
    assert module.returncode == 2
    assert "--run-path with timeit, which is a module" in module.stderr


def test_a_script_that_launches_by_itself_starts_no_run_in_each_rank(tmp_path: Path) -> None:
    """As a notebook exported with its launch: each rank once trained alone, and said nothing."""
    (tmp_path / "s.py").write_text(
        "from notebook_accel import Accelerator, notebook_launcher\n"
        "def main():\n    return Accelerator().num_processes\n"
        "print(list(notebook_launcher(main, num_processes=2, device='cpu')))\n"
    )
    done = launch("--cpu", "--num_processes", "2", "s.py", cwd=tmp_path)
    assert done.returncode == 1 and "[2, 2]" not in done.stdout
    assert "of 2, as torchrun tells, tried to launch a run of its own" in done.stderr
    assert launch("--cpu", "s.py", cwd=tmp_path).stdout.endswith("[2, 2]\n")


@pytest.mark.slow
@pytest.mark.parametrize("names", ["SLURM_PROCID SLURM_STEP_NUM_TASKS", "PMI_RANK PMI_SIZE"])
def test_tasks_of_srun_and_mpirun_are_ranks(tmp_path: Path, names: str) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\nfrom notebook_accel import Accelerator\naccelerator = Accelerator()\n"
        "total = accelerator.reduce(torch.tensor(accelerator.process_index + 1.0))\n"
        "print(accelerator.process_index, accelerator.num_processes, total.item())"
    )
    rank_name, size_name = names.split()
    port = str(20000 + os.getpid() % 10000)
    running = []
    for rank in ("0", "1"):
        env = {rank_name: rank, size_name: "2", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "1"}
        running.append(begin("script.py", cwd=tmp_path, **env))
    said = [one.communicate(timeout=90) for one in running]
    assert [out for out, _ in said] == ["0 2 3.0\n", "1 2 3.0\n"], said


@pytest.mark.slow
def test_torchrun_has_the_losses_of_a_launch(script: Path, alone: list[float]) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*words, str(script)],
        env=clean_env(ACCELERATE_USE_CPU="true"), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert losses(done, 2) == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_accelerates_launcher_has_the_losses_of_ours(script: Path, alone: list[float]) -> None:
    pytest.importorskip("accelerate")
    words = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    done = subprocess.run(
        [*words, str(script)], env=clean_env(), capture_output=True, text=True, timeout=90
    )
    assert losses(done, 1) == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_a_crash_is_started_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RESUME)
    words = ["--cpu", "--num_processes", "2", "--max_restarts", "1", "script.py", "6", "3"]
    done = launch(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "launch: restart 1 of 1, world size 2" in done.stderr
    assert done.stdout.splitlines() == ["from step 0", "from step 3", "done"]


@pytest.mark.slow
def test_a_crash_beyond_all_restarts_has_the_exit_code_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys, time\nsys.exit(9) if os.environ['RANK'] == '1' else time.sleep(60)"
    )
    words = ["--cpu", "--num_processes", "2", "--max_restarts", "1", "script.py"]
    done = launch(*words, cwd=tmp_path)
    assert done.returncode == 9
    assert done.stderr.endswith("rank 1 failed after 1 restart, exit code 9\n")


@pytest.mark.slow
def test_tee_tags_every_line_with_its_rank_and_keeps_files(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('hello')")
    words = ["--cpu", "--num_processes", "2", "--tee", "3", "--log_dir", "logs", "script.py"]
    done = launch(*words, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["[default0]:hello", "[default1]:hello"]
    assert len(list((tmp_path / "logs").rglob("stdout.log"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_agent(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(
        "import os, time\nopen('pid' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    words = ["--cpu", "--num_processes", "2", "--max_restarts", "1", "script.py"]
    running = begin(*words, cwd=tmp_path)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), 60)
    ranks = [psutil.Process(int(file.read_text())) for file in files]
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == -number
    wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in ranks))


RESUME = """
import os, sys
import torch
from notebook_accel import Accelerator

class Count:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

last, crash_at = map(int, sys.argv[1:])
accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
count = Count()
accelerator.register_for_checkpointing(count)
if os.path.exists("state"):
    accelerator.load_state("state")
accelerator.print("from step", count.value)
while count.value < last:
    if count.value == crash_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        accelerator.wait_for_everyone()
        os._exit(3) if accelerator.process_index == 1 else accelerator.wait_for_everyone()
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(4, 2)).square().mean())
    optimizer.step()
    count.value += 1
    accelerator.save_state("state")
accelerator.print("done")
"""
