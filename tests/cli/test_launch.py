"""A launch as a person types it: whose words are whose, what runs, how it ends, what is said."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from tests.support.launches import LAUNCH, begin, clean_env, launch, wait_for

TELL = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "GLOO_SOCKET_IFNAME", "ACCELERATE_DYNAMO_BACKEND")
print(json.dumps({"argv": sys.argv, "env": {n: os.environ[n] for n in names if n in os.environ},
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0)}))
"""
WAIT = """
import os, sys, time
open(f"pid{os.environ.get('RANK', '0')}", "w").write(str(os.getpid()))
time.sleep(60)
"""


def write(folder: Path, source: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def told(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda one: one["env"].get("RANK"))


def pids(folder: Path, num: int) -> list[int]:
    """Wait until each rank has written its process id."""
    files = [folder / f"pid{rank}" for rank in range(num)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def all_gone(numbers: list[int]) -> bool:
    alive = [psutil.Process(one) for one in numbers if psutil.pid_exists(one)]
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


# ── whose words are whose ─────────────────────────────────────────────────────────────────────


def test_words_after_the_scripts_name_are_the_scripts(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    words = ["--num_processes", "3", "--cpu", "-m", "--", "--help", "-1"]
    (one,) = told(launch("--cpu", script, *words))
    assert one["argv"] == [str(script), *words]


def test_both_spellings_of_an_option_are_taken(tmp_path: Path) -> None:
    write(tmp_path, TELL)
    words = ["--cpu", "--num-processes=2", "--mixed_precision", "bf16", "script.py"]
    first, second = told(launch(*words, cwd=tmp_path))
    assert first["env"]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert second["env"]["WORLD_SIZE"] == "2"


def test_torchruns_words_mean_what_they_mean_there(tmp_path: Path) -> None:
    words = "--nnodes=2 --nproc-per-node=2 --node-rank=1 --master-addr=10.1.1.1 --master-port=1234"
    done = launch("--cpu", *words.split(), "--dry-run", write(tmp_path, TELL))
    assert done.returncode == 0, done.stderr
    assert "2 CPU processes on machine 1 of 2, which meet at 10.1.1.1:1234" in done.stdout
    assert "--node-rank 1 --master-addr 10.1.1.1 --master-port 1234" in done.stdout


def test_a_launch_without_a_script_says_what_is_missing() -> None:
    done = launch("--cpu")
    assert done.returncode == 2
    assert "the following arguments are required: SCRIPT\n" in done.stderr


def test_a_module_is_run_as_python_would(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path / "package", "", "__init__.py")
    write(tmp_path / "package", TELL, "train.py")
    (one,) = told(launch("--cpu", "-m", "package.train", "--lr", "1", cwd=tmp_path))
    assert one["argv"] == [str(tmp_path / "package" / "train.py"), "--lr", "1"]


def test_a_program_is_run_without_python() -> None:
    done = launch("--cpu", "-q", "--no_python", "echo", "hello", "--cpu")
    assert (done.stdout, done.stderr) == ("hello --cpu\n", "")


def test_a_misspelt_option_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = launch("--num_proceses", "2", write(tmp_path, TELL))
    assert done.returncode == 2
    assert "did you mean --num_processes?" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["a.yaml"], "write notebook-accel launch --config_file a.yaml script.py"),
        (["x.sh"], "write notebook-accel launch --no_python ./x.sh"),
        (["ruby", "x.py"], "#!/usr/bin/env ruby says which program it is for"),
        (["--fp16", "x.py"], "unknown option --fp16: write --mixed_precision fp16"),
        (["--ipex", "x.py"], "unknown option --ipex: leave it out. Intel's extension of torch"),
        (["--no_python", "no-such-program"], "there is no program 'no-such-program'"),
        (["-m", "--no_python", "x"], "-m and --no_python are both given"),
        (["--timeout_s", "3", "x.py"], "--timeout_s is no option of a launch"),
        (["--nnodes", "two", "x.py"], "--nnodes two is no count of machines"),
    ],
)
def test_what_cannot_be_run_is_an_error_of_use(tmp_path: Path, words: list[str], said: str) -> None:
    write(tmp_path, "device: cpu", "a.yaml")
    write(tmp_path, "#!/bin/sh", "x.sh")
    write(tmp_path, "#!/usr/bin/env ruby", "ruby")
    write(tmp_path, "#!/usr/bin/env python3", "x.py")
    done = launch("--cpu", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "do:" in done.stderr


# ── what runs ─────────────────────────────────────────────────────────────────────────────────


def test_one_process_is_the_script_itself(tmp_path: Path) -> None:
    running = begin("--cpu", write(tmp_path, TELL))
    said, _ = running.communicate(timeout=30)
    assert json.loads(said)["pid"] == running.pid


def test_the_parent_of_ranks_never_imports_torch(tmp_path: Path) -> None:
    script = write(tmp_path, "import os; print(os.getppid()); input() if os.getpid() else None")
    running = subprocess.Popen(
        [*LAUNCH, "--cpu", "--num_processes", "2", str(script)],
        env=clean_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None and running.stdin is not None
    parent = int(running.stdout.readline())
    libraries = Path(f"/proc/{parent}/maps")
    if libraries.exists():
        assert "libtorch" not in libraries.read_text()
    running.communicate("\n", timeout=30)


def test_two_processes_know_their_places(tmp_path: Path) -> None:
    ranks = told(launch("--cpu", "--num_processes", "2", write(tmp_path, TELL)))
    for rank, one in enumerate(ranks):
        env = one["env"]
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "2"
        assert (env["MASTER_ADDR"], env["ACCELERATE_USE_CPU"]) == ("127.0.0.1", "true")
        assert one["session"] == one["pid"]
    assert ranks[0]["env"]["MASTER_PORT"] == ranks[1]["env"]["MASTER_PORT"] != "29500"


def test_threads_are_shared_among_ranks_unless_somebody_said_how_many(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = told(launch("--cpu", "--num_processes", "2", script))[0]["env"]["OMP_NUM_THREADS"]
    assert 1 <= int(share) <= max(1, (cores or 1) // 2)
    kept = launch("--cpu", "--num_processes", "2", script, OMP_NUM_THREADS="7")
    assert told(kept)[1]["env"]["OMP_NUM_THREADS"] == "7"
    assert "7 threads each" in kept.stderr
    asked = launch("--cpu", "--num_cpu_threads_per_process", "3", script)
    assert told(asked)[0]["env"]["OMP_NUM_THREADS"] == "3"


def test_the_ranks_of_an_outer_run_are_used_where_nothing_else_was_asked(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    outer = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    inside = launch("--cpu", "--mixed_precision", "bf16", script, **outer, MASTER_PORT="1234")
    (one,) = told(inside)
    assert {name: one["env"][name] for name in outer} == outer
    assert one["env"]["MASTER_PORT"] == "1234"
    assert one["env"]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    asked = told(launch("--cpu", "--num_processes", "2", script, **outer))
    assert [one["env"]["WORLD_SIZE"] for one in asked] == ["2", "2"]


def test_a_process_asked_to_be_alone_is_no_rank_of_an_outer_run(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    (one,) = told(launch("--cpu", "--num_processes", "1", script, RANK="1", WORLD_SIZE="2"))
    assert "RANK" not in one["env"] and "WORLD_SIZE" not in one["env"]
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
    (one,) = told(launch("--cpu", "--num_processes", "1", script, **slurm))
    assert (one["env"]["RANK"], one["env"]["WORLD_SIZE"]) == ("0", "1")


def test_each_task_of_srun_is_one_rank(tmp_path: Path) -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
    done = launch("--cpu", write(tmp_path, TELL), **slurm)
    assert done.stderr == ""  # rank 0 speaks for all
    first = launch("--cpu", write(tmp_path, TELL), **{**slurm, "SLURM_PROCID": "0"})
    assert "rank 0 of 2, as Slurm tells" in first.stderr
    (one,) = told(done)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    assert {name: one["env"][name] for name in place} == place


@pytest.mark.parametrize("num", ["1", "2"])
def test_a_program_that_the_system_refuses_is_an_error(tmp_path: Path, num: str) -> None:
    text = write(tmp_path, "hello")
    text.chmod(0o755)
    done = launch("--cpu", "--num_processes", num, "--no_python", text)
    assert done.returncode == 1
    assert "does not start: Exec format error" in done.stderr and "Traceback" not in done.stderr


def test_one_launch_on_each_node_of_slurm_knows_which_machine_it_is(tmp_path: Path) -> None:
    words = ["--cpu", "--num_machines", "2", "--num_processes", "2", "--main_process_ip"]
    words += ["127.0.0.1", "--dry_run", write(tmp_path, TELL)]
    done = launch(*words, SLURM_NODEID="1", SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert "on machine 1 of 2" in done.stdout, done.stderr


def test_what_is_decided_on_the_cpu_needs_neither_torch_nor_a_driver(tmp_path: Path) -> None:
    code = (
        "import sys; from notebook_accel.cli.main import main; main(sys.argv[1:]); "
        "sys.exit(str({'torch', 'pynvml', 'yaml'} & set(sys.modules) or ''))"
    )
    words = ["launch", "--cpu", "--dry_run", str(write(tmp_path, TELL))]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=clean_env(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == "\n"


def test_a_port_in_use_is_chosen_anew_with_a_note(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        words = ["--cpu", "--num_processes", "2", "--main_process_port", port, script]
        done = launch(*words)
        assert f"port {port} is in use: a free one was chosen" in done.stderr
        assert told(done)[0]["env"]["MASTER_PORT"] != port
    assert told(launch(*words))[0]["env"]["MASTER_PORT"] == port


def test_two_launches_that_ask_for_one_port_do_not_share_it(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    write(tmp_path, "import os\nopen('port', 'w').write(os.environ['MASTER_PORT'])\n" + WAIT)
    words = ["--cpu", "--num_processes", "2", "--main_process_port", port]
    first = begin(*words, "script.py", cwd=tmp_path)
    try:
        pids(tmp_path, 2)
        second = launch(*words, write(tmp_path, TELL, "tell.py"))
    finally:
        first.terminate()
        first.communicate(timeout=30)
    assert (tmp_path / "port").read_text() == port
    assert told(second)[0]["env"]["MASTER_PORT"] != port
    assert "a free one was chosen" in second.stderr


def test_gpus_asked_for_on_a_machine_without_any_become_cpu_ranks_with_a_note(
    tmp_path: Path,
) -> None:
    """A published command line, run on a laptop (CL06)."""
    words = "--main_process_port=29804 --multi_gpu --num_processes=2 --gpu_ids=0,1 --num_machines=1"
    words += " --mixed_precision=bf16 --dynamo_backend=no"
    done = launch(*words.split(), write(tmp_path, TELL))
    if "CPU processes" not in done.stderr:
        pytest.skip("this machine has GPUs")
    assert "note: no GPU here: the ranks run on the CPU" in done.stderr
    env = [one["env"] for one in told(done)]
    assert [one["RANK"] for one in env] == ["0", "1"]
    assert env[0]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert env[0]["ACCELERATE_USE_CPU"] == "true"


def test_accumulation_given_at_the_launch_reaches_the_script(tmp_path: Path) -> None:
    """CL05, whose other half is the argument that wins in the code."""
    done = launch("--cpu", "--gradient_accumulation_steps", "4", write(tmp_path, TELL))
    assert told(done)[0]["env"]["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"


def test_standard_input_is_rank_0s(tmp_path: Path) -> None:
    script = write(tmp_path, "import os, sys; print(os.environ['RANK'], repr(sys.stdin.read()))")
    done = subprocess.run(
        [*LAUNCH, "--cpu", "--num_processes", "2", str(script)],
        env=clean_env(), input="mine", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["0 'mine'", "1 ''"]


# ── how it ends ───────────────────────────────────────────────────────────────────────────────


# What one rank tells another by a file, so that nothing hangs on how soon each of them starts.
MEET = """
def tell(what): open(os.path.join(os.path.dirname(os.path.abspath(__file__)), what), "w").close()
def wait(what):
    while not os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), what)):
        time.sleep(0.01)
"""


def failing(tmp_path: Path, source: str, num: int = 2) -> subprocess.CompletedProcess[str]:
    head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
    return launch("--cpu", "--num_processes", str(num), write(tmp_path, head + source))


def test_a_failure_that_all_ranks_share_is_told_once(tmp_path: Path) -> None:
    done = failing(tmp_path, "raise ValueError(f'bad value on rank {rank}')", num=3)
    assert done.returncode == 1
    assert done.stderr.count("ValueError: bad value on rank") == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ranks 0-2 of 3 failed in the same way, exit code 1\n")


def test_the_rank_that_failed_first_is_blamed_and_its_exit_code_passed_on(tmp_path: Path) -> None:
    source = (
        "if rank == 1:\n    print('no such file', file=sys.stderr); sys.exit(7)\ntime.sleep(60)"
    )
    began = time.monotonic()
    done = failing(tmp_path, source)
    assert done.returncode == 7
    assert "no such file\n" in done.stderr
    assert done.stderr.endswith("rank 1 of 2 failed, exit code 7\n")
    assert time.monotonic() - began < 60


def test_a_lost_connection_is_not_blamed_when_another_rank_explains_it(tmp_path: Path) -> None:
    source = (
        MEET + "if rank == 0:\n    wait('second')\n"
        "    raise RuntimeError('[gloo] Connection closed by peer [127.0.0.1]:1')\n"
        "tell('second'); time.sleep(0.3)\nraise KeyError('the reason')"
    )
    done = failing(tmp_path, source)
    assert "KeyError: 'the reason'" in done.stderr and "Connection closed" not in done.stderr
    assert done.stderr.endswith("rank 1 of 2 failed, exit code 1\n")


def test_a_killed_rank_is_named_with_its_signal_and_the_shells_exit_code(tmp_path: Path) -> None:
    done = failing(tmp_path, "if rank: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 of 2 was killed by SIGKILL" in done.stderr
    assert "memory" in done.stderr


def test_a_traceback_that_is_only_logged_is_shown_while_the_script_goes_on(tmp_path: Path) -> None:
    source = (
        MEET + "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError:\n"
        "    if rank == 0: traceback.print_exc(); tell('told'); wait('seen')\n"
        "if rank == 1: wait('told'); time.sleep(2); print('still', file=sys.stderr); tell('seen')"
    )
    done = failing(tmp_path, source)
    assert done.returncode == 0
    assert done.stderr.index("ZeroDivisionError: division by zero") < done.stderr.index("still")


def test_lines_of_several_ranks_never_mix(tmp_path: Path) -> None:
    source = "for i in range(200): print(f'<{rank}', 'x' * 50, end='', sep='-'); print('>')"
    lines = failing(tmp_path, source).stdout.splitlines()
    assert len(lines) == 400
    assert all(line[0] == "<" and line[-1] == ">" and line.count("<") == 1 for line in lines)


def test_quiet_leaves_only_what_the_script_writes(tmp_path: Path) -> None:
    script = write(tmp_path, "raise ValueError('loud')")
    done = launch("-q", "--cpu", "--num_processes", "2", script)
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: loud\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_ends_the_launch_by_itself(
    tmp_path: Path, number: signal.Signals
) -> None:
    write(tmp_path, WAIT)
    running = begin("--cpu", "--num_processes", "2", "script.py", cwd=tmp_path)
    ranks = pids(tmp_path, 2)
    running.send_signal(number)
    _, said = running.communicate(timeout=30)
    assert running.returncode == -number
    assert said.endswith(f"ended by {number.name}\n")
    assert said.count("KeyboardInterrupt") == (number == signal.SIGINT)
    assert all_gone(ranks)


def test_a_script_that_saves_on_sigterm_ends_as_it_wants(tmp_path: Path) -> None:
    source = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + WAIT
    write(tmp_path, source)
    running = begin("--cpu", "--num_processes", "2", "script.py", cwd=tmp_path)
    pids(tmp_path, 2)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=30)
    assert running.returncode == 0


def test_a_second_interrupt_kills_a_script_that_does_not_listen(tmp_path: Path) -> None:
    write(tmp_path, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAIT)
    running = begin("--cpu", "--num_processes", "2", "script.py", cwd=tmp_path)
    ranks = pids(tmp_path, 2)
    running.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=0.5)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT
    assert all_gone(ranks)


def test_other_signals_reach_every_rank(tmp_path: Path) -> None:
    hear = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(0))\n"
    write(tmp_path, hear + WAIT)
    running = begin("--cpu", "--num_processes", "2", "script.py", cwd=tmp_path)
    pids(tmp_path, 2)
    running.send_signal(signal.SIGUSR1)
    running.communicate(timeout=30)
    assert running.returncode == 0


def test_ranks_and_what_they_started_end_with_a_launch_that_is_killed(tmp_path: Path) -> None:
    child = "import subprocess, sys\nchild = subprocess.Popen(['sleep', '60'])\n"
    child += (
        "open(f\"pid{int(__import__('os').environ['RANK']) + 2}\", 'w').write(str(child.pid))\n"
    )
    write(tmp_path, child + WAIT)
    running = begin("--cpu", "--num_processes", "2", "script.py", cwd=tmp_path)
    everything = pids(tmp_path, 4)
    running.kill()
    running.communicate(timeout=30)
    wait_for(lambda: all_gone(everything), timeout_s=10)


ENDED_WHILE_STARTING = """
import os, signal, subprocess, sys
from notebook_accel.cli.main import main
number = signal.Signals[sys.argv.pop(1)]
begin = subprocess.Popen.__init__
def begin_and_be_ended(self, words, **options):
    begin(self, words, **options)
    if "script.py" in words:
        print(self.pid, flush=True)
        os.kill(os.getpid(), number)
subprocess.Popen.__init__ = begin_and_be_ended
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_launch_ended_while_it_starts_ranks_leaves_none(tmp_path: Path, name: str) -> None:
    """The signal comes at the worst moment: a rank is there, and nobody has been told of it."""
    write(tmp_path, WAIT)
    words = ("launch", "--cpu", "--num_processes", "2", "script.py")
    done = subprocess.run(
        [sys.executable, "-c", ENDED_WHILE_STARTING, name, *words],
        cwd=tmp_path,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.Signals[name]
    ranks = list(map(int, done.stdout.split()))
    assert len(ranks) == (1 if name == "SIGKILL" else 2)  # what can wait is heard by all
    assert name == "SIGKILL" or done.stderr.endswith("ended by SIGTERM\n")
    wait_for(lambda: all_gone(ranks), timeout_s=20)


def test_what_a_script_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    source = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    done = failing(tmp_path, source)
    assert done.returncode == 0
    wait_for(lambda: all_gone(list(map(int, done.stdout.split()))), timeout_s=10)


def test_a_reader_that_goes_away_ends_the_script_as_a_broken_pipe_does(tmp_path: Path) -> None:
    script = write(tmp_path, "while True: print('y' * 100)")
    words = " ".join([*LAUNCH, "-q", "--cpu", "--num_processes", "2", str(script)])
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1"],
        env=clean_env(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "y" * 100 + "\n"


def test_in_a_terminal_rank_0_has_one_of_its_own(tmp_path: Path) -> None:
    source = (
        "import os, sys, time\nrank = os.environ['RANK']\n"
        + MEET
        + "print(rank, sys.stderr.isatty(), flush=True)\n"
    )
    source += "if rank == '1': tell('said')\n"
    source += "else: wait('said'); print('width', os.get_terminal_size(2).columns); 1 / 0"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 123, 0, 0))
    running = subprocess.Popen(
        [*LAUNCH, "--cpu", "--num_processes", "2", str(write(tmp_path, source))],
        env=clean_env(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 4096):
            said += data
    except OSError:  # the last one has closed the terminal
        pass
    running.wait(timeout=30)
    os.close(ours)
    lines = said.decode().splitlines()
    assert "0 True" in lines and "1 False" in lines and "width 123" in lines
    assert lines[-2:] == [
        "ZeroDivisionError: division by zero",
        "notebook-accel launch: rank 0 of 2 failed, exit code 1",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_output_that_finds_no_room_is_a_failure(tmp_path: Path) -> None:
    words = [*LAUNCH, "--cpu", "--num_processes", "2", str(write(tmp_path, "print('lost')"))]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words, env=clean_env(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.endswith("what the ranks wrote is lost: No space left on device\n")


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_plan_and_environment_and_starts_nothing(tmp_path: Path) -> None:
    script = write(tmp_path, "open('ran', 'w')")
    words = ["--cpu", "--num_processes", "2", "--mixed_precision", "bf16", "--dry_run", script]
    done = launch(*words, "--lr", "a b", cwd=tmp_path)
    assert done.returncode == 0 and not (tmp_path / "ran").exists()
    assert f"  {sys.executable} -u {script} --lr 'a b'" in done.stdout
    for line in (
        "  ACCELERATE_MIXED_PRECISION=bf16",
        "  MASTER_PORT=a free port",
        "2 CPU processes",
    ):
        assert line in done.stdout


def test_a_configuration_file_counts_and_is_named_with_what_counts(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"
        "num_processes: 2\nmixed_precision: bf16\n"
    )
    done = launch("--config_file", file, script)
    assert told(done)[1]["env"]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    said = f"from {file}: device=cpu, num_processes=2, mixed_precision=bf16\n"
    assert said in done.stderr  # and nothing of what is as it would be anyway
    only = launch("--config_file", file, "--num_processes", "1", script)
    assert len(told(only)) == 1


def test_what_changes_nothing_is_said_wherever_it_was_asked_for(tmp_path: Path) -> None:
    script = write(tmp_path, "")
    words = ["--cpu", "--enable_cpu_affinity", "--main_training_function", "foo", "--zero_stage"]
    done = launch(*words, "3", script, ACCELERATE_MIXED_PRECISON="bf16")
    assert done.returncode == 0, done.stderr
    assert "note: --enable_cpu_affinity changes nothing in this version\n" in done.stderr
    assert "note: --main_training_function changes nothing in this version\n" in done.stderr
    assert (
        "note: --zero_stage 3 counts only with --use_deepspeed or a DeepSpeedPlugin of the script\n"
    ) in done.stderr
    assert (
        "note: the variable ACCELERATE_MIXED_PRECISON is not known; "
        "did you mean ACCELERATE_MIXED_PRECISION?\n"
    ) in done.stderr
    file = write(tmp_path, "downcast_bf16: true\nfsdp_version: 2\n", "mine.yaml")
    done = launch("--cpu", "--config_file", file, script)
    assert "note: downcast_bf16 changes nothing in this version\n" in done.stderr
    assert "note: fsdp_version: 2 counts only with strategy: fsdp or a Fully" in done.stderr


@pytest.mark.parametrize(
    ("words", "what", "do"),
    [
        (
            ["--num_processes", "2", "--main_process_port", "99999"],
            "--main_process_port 99999 is out of range\n  why: use_port must be from 0 to 65535",
            "write another",
        ),
        (
            ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:99999"],
            "--rdzv_endpoint localhost:99999 has no port",
            "--rdzv_endpoint localhost:29400",
        ),
        (
            ["--num_machines", "2", "--num_processes", "3"],
            "--num_processes 3 on 2 machines",
            "write --num_processes 4",
        ),
        (
            ["--num_machines", "2"],
            "--num_machines 2, without an address of the first machine",
            "write --main_process_ip ADDRESS, the same on every machine",
        ),
        (
            ["--use_deepspeed", "--deepspeed_config_file", "no.json"],
            "--deepspeed_config_file no.json: there is no such file",
            "correct the path, or leave --deepspeed_config_file out",
        ),
        (
            ["--deepspeed_hostfile", "no"],
            "--deepspeed_hostfile no: there is no such file",
            "correct the path",
        ),
        (
            ["--mpirun_hostfile", "no"],
            "--mpirun_hostfile no: there is no such file",
            "correct the path",
        ),
    ],
)
def test_what_cannot_be_is_answered_in_the_words_of_the_command_line(
    tmp_path: Path, words: list[str], what: str, do: str
) -> None:
    done = launch("--cpu", *words, write(tmp_path, ""), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"ConfigError: {what}" in done.stderr and do in done.stderr
    assert "Traceback" not in done.stderr


def test_the_default_file_is_used_and_named(tmp_path: Path) -> None:
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text("distributed_type: NO\nmixed_precision: no\nuse_cpu: true\nnum_processes: 1\n")
    env = clean_env(HF_HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "empty"))
    del env["NOTEBOOK_ACCEL_CONFIG"]
    done = launch(write(tmp_path, TELL), env=env)
    assert str(file) in done.stderr
    assert told(done)[0]["env"]["ACCELERATE_MIXED_PRECISION"] == "no"


def test_no_without_quotes_is_a_word_for_the_launch_too(tmp_path: Path) -> None:
    """CL03: YAML makes booleans of both."""
    file = tmp_path / "mine.yaml"
    file.write_text("mixed_precision: no\ndistributed_type: NO\nuse_cpu: true\n")
    done = launch("--config_file", file, write(tmp_path, TELL))
    assert done.returncode == 0, done.stderr
    assert told(done)[0]["env"].get("ACCELERATE_MIXED_PRECISION", "no") == "no"


@pytest.mark.parametrize(
    ("text", "said"),
    [("foo_bar: 1\n", "foo_bar"), ("num_processes: [\n", "mine.yaml"), (None, "mine.yaml")],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str | None, said: str) -> None:
    """CL02 as a launch shows it; the corpus of tests/config has every kind."""
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    done = launch("--config_file", file, write(tmp_path, TELL))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


def test_what_is_not_here_yet_is_answered_before_anything_starts(tmp_path: Path) -> None:
    done = launch("--tpu", write(tmp_path, "open('ran', 'w')"), cwd=tmp_path)
    assert done.returncode != 0 and not (tmp_path / "ran").exists()
    assert "not here yet" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["--help_all"]])
def test_help_fits_80_columns(words: list[str]) -> None:
    done = launch(*words, COLUMNS="200")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "--num_processes" in done.stdout
    assert ("--fsdp_version" in done.stdout) == (words == ["--help_all"])
    assert "--on_interrupt" not in done.stdout or words == ["--help_all"]


# ── other launchers ───────────────────────────────────────────────────────────────────────────

FAKE = """#!/bin/sh
if [ "$1" = "--version" ]; then echo "$SAYS"; exit 0; fi
echo "$(basename "$0") $@"
"""


def fake(folder: Path, name: str) -> str:
    """Put a program ``name`` that prints its words on a PATH, and give that PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(FAKE)
    path.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("says", "each"),
    [("mpirun (Open MPI) 4.1.6", "--map-by ppr:2:node"), ("HYDRA build details:", "-ppn 2")],
)
def test_mpirun_is_used_where_a_hostfile_for_it_is_given(
    tmp_path: Path, says: str, each: str
) -> None:
    script = write(tmp_path, TELL)
    write(tmp_path, "a\nb\n", "hosts")
    words = ["--cpu", "--mpirun_hostfile", "hosts", "--num_processes", "4", "--num_machines", "2"]
    words += ["--main_process_ip", "10.0.0.1", "--mixed_precision", "bf16", "--mpirun_ccl", "3"]
    path = fake(tmp_path / "bin", "mpirun")
    done = launch(*words, script, "--lr", "1", cwd=tmp_path, PATH=path, SAYS=says)
    assert done.returncode == 0, done.stderr
    head, _, tail = done.stdout.strip().partition(" env ")
    assert head == f"mpirun -hostfile hosts -np 4 {each}"
    assert "ACCELERATE_MIXED_PRECISION=bf16" in tail and "MASTER_ADDR=10.0.0.1" in tail
    assert "CCL_WORKER_COUNT=3" in tail and "changes nothing" not in done.stderr
    assert tail.endswith(f"{sys.executable} -u {script} --lr 1")


def test_deepspeeds_launcher_is_used_where_it_is_chosen(tmp_path: Path) -> None:
    script = write(tmp_path, TELL)
    write(tmp_path, "a slots=2\n", "hosts")
    words = ["--cpu", "--deepspeed_hostfile", "hosts", "--deepspeed_multinode_launcher", "pdsh"]
    words += ["--num_machines", "2", "--num_processes", "4", "--main_process_ip", "10.0.0.1"]
    words += ["--deepspeed_exclusion_filter", "host1:0"]
    done = launch(*words, script, cwd=tmp_path, PATH=fake(tmp_path / "bin", "deepspeed"))
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip()
    assert said.startswith("deepspeed --no_local_rank --hostfile hosts --launcher pdsh")
    assert "--exclude host1:0 --num_nodes 2 --master_addr 10.0.0.1 --master_port 29500" in said
    assert "--no_python env ACCELERATE_USE_CPU=true" in said and said.endswith(f"-u {script}")


def test_a_launcher_that_is_not_installed_is_named_with_a_way_out(tmp_path: Path) -> None:
    hosts = write(tmp_path, "a\n", "hosts")
    words = ["--cpu", "--mpirun_hostfile", hosts, write(tmp_path, TELL)]
    done = launch(*words, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "there is no program 'mpirun'" in done.stderr and "Open MPI" in done.stderr
