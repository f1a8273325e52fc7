"""What feeds a training loop: how loaders read and where they begin, and uneven ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch.distributed.algorithms.join import Join, Joinable
from torch.utils.data import DataLoader

from notebook_accel.config.adoption import adopted
from notebook_accel.config.fields import check_switches
from notebook_accel.config.kinds import RNGType
from notebook_accel.config.loading import DataLoaderConfiguration, checked_rng_types
from notebook_accel.data.skip import skip_first_batches
from notebook_accel.ranks.stop import StopAgreement
from notebook_accel.ranks.world import World
from notebook_accel.runtime.prepare import Wardrobe


class Feeding:
    """The part of an Accelerator that reads data; ``dataloader_config`` counts at ``prepare``."""

    dataloader_config: DataLoaderConfiguration
    rng_types: list[RNGType]
    _world: World
    _stop: StopAgreement
    _wardrobe: Wardrobe

    def _choose_loading(
        self,
        config: DataLoaderConfiguration | None,
        split_batches: bool | None,
        rng_types: Iterable[Any] | None,
    ) -> None:
        given = adopted("dataloader_config", config, DataLoaderConfiguration)
        config = replace(given or DataLoaderConfiguration())  # ours: even_batches can be set
        if split_batches is not None:
            check_switches("Accelerator", split_batches=split_batches)
            config.split_batches = split_batches
        self.dataloader_config = config
        self.rng_types = checked_rng_types(rng_types)

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads for all; None: iterable datasets only."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether tails are completed, so that all ranks take equally many steps.

        A change counts for loaders prepared after it.
        """
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether the shuffled order is a function of a seed and the epoch alone."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether copies to the device are not waited for."""
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether streams are read by torchdata's StatefulDataLoader."""
        return self.dataloader_config.use_stateful_dataloader

    def skip_first_batches(
        self, dataloader: DataLoader[Any], num_batches: int = 0
    ) -> DataLoader[Any]:
        """Give a loader that begins after ``num_batches`` batches of this rank.

        Of a prepared loader it is a view: a pass over it is the loader's pass, metrics and
        accumulation know its end, and the loader's next pass is the next epoch. In a pass that
        ``load_state`` resumes, the number counts from that pass's start.
        """
        return skip_first_batches(dataloader, num_batches)

    @contextmanager
    def join_uneven_inputs(
        self, joinables: Iterable[Any], even_batches: bool | None = None
    ) -> Iterator[None]:
        """Let ranks take unlike numbers of steps inside the block, on any device.

        A rank that is out of batches joins in the gradient averages of the others until they are
        done too. ``joinables`` are prepared models. ``even_batches=False`` reads the tail of
        prepared loaders as it is, without repeats, inside the block; with even batches there is
        nothing to join. Collectives of your own do not belong inside; a run that is asked to stop
        stops after the block.

        Ranks: all ranks enter it.
        """
        loaders = self._wardrobe.loaders
        before = [one.even_batches for one in loaders]
        even = self.even_batches if even_batches is None else even_batches
        if even_batches is not None:
            for one in loaders:
                one.even_batches = even_batches
        models = [one for one in joinables if isinstance(one, Joinable)]
        uneven = self._world.size > 1 and not even and bool(models)
        try:
            with ExitStack() as stack:
                if uneven:
                    # Ranks that take unlike numbers of steps cannot count boundaries alike.
                    stack.enter_context(self._stop.paused())
                    stack.enter_context(Join(models))
                yield
        finally:
            for one, was in zip(loaders, before, strict=True):
                one.even_batches = was
