"""Who opened the device, told in a real kernel by its cells."""

from __future__ import annotations

from pathlib import Path

from tests.support.kernels import Kernel


def test_the_doctor_names_the_cell_that_opened_a_device(tmp_path: Path) -> None:
    device = tmp_path / "device0"
    device.touch()
    with Kernel() as kernel:
        assert not kernel.run("%load_ext notebook_accel").error
        assert not kernel.run(
            "import notebook_accel, re\n"
            f"notebook_accel.watch_devices()._files = re.compile('{device}')"
        ).error
        reply = kernel.run(f"1 + 1\nheld = open('{device}')")
        assert not reply.error
        cell = kernel.execution_count
        told = kernel.run("notebook_accel.doctor(1)")
        group = "import torch.distributed as d; s = d.HashStore(); "
        group += "d.init_process_group('gloo', store=s, rank=0, world_size=1)"
        assert not kernel.run(group).error
        launched = kernel.run(
            "def main(): return 1\n"
            "run = notebook_accel.notebook_launcher(main, num_processes=1, device='cpu')"
        )
    (result,) = [c["data"]["text/plain"] for kind, c in told.messages if kind == "execute_result"]
    said = " ".join(result.split())
    assert f"note device {device} was opened, at Cell In[{cell}], line 2 why: " in said
    assert result.startswith("1 process can train here")
    reason = "a process group of torch.distributed is open in this kernel"
    assert f"by forkserver ({reason}; {device} was opened, at Cell In[{cell}], line 2)." in (
        launched.out
    )


def test_a_file_that_c_code_opened_in_a_cell_is_named_with_the_cell(tmp_path: Path) -> None:
    device = tmp_path / "device0"
    device.touch()
    with Kernel() as kernel:
        kernel.run(f"import ctypes, notebook_accel\nw = notebook_accel.watch_devices('{device}')")
        reply = kernel.run(f"fd = ctypes.CDLL(None).open(b'{device}', 0)")
        assert not reply.error
        cell = kernel.execution_count
        said = kernel.run("print(w)").out
    assert said == f"DeviceWatch: {device} was opened by code outside Python, at Cell In[{cell}]\n"
