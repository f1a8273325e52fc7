"""What an Accelerator and its state say of sharding, in the same words: there is none."""

from __future__ import annotations


class Unsharded:
    """Every rank holds the whole model."""

    @property
    def deepspeed_plugin(self) -> None:
        """How DeepSpeed trains; None, as it does not."""

    @property
    def parallelism_config(self) -> None:
        """How ranks are laid out over several dimensions; None, as they are not."""

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP2."""
        return False
