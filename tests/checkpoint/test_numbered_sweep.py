"""What a late rank leaves of a deleted checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from notebook_accel import Accelerator


def test_loading_sweeps_a_folder_that_a_late_rank_wrote_after_its_deletion(tmp_path: Path) -> None:
    accelerator = Accelerator(project_dir=tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = True
    accelerator.prepare_model(nn.Linear(1, 1))
    accelerator.save_state()
    accelerator.save_state()
    folder = tmp_path / "checkpoints"
    accelerator.save_state()
    late = folder / "checkpoint_1"
    shutil.rmtree(late)
    late.mkdir()
    (late / "random_states_1.pkl").touch()  # rank 1's own file alone, below a whole checkpoint
    accelerator.load_state()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_0", "checkpoint_2"]
