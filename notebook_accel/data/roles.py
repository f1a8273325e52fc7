"""The loader classes that Accelerate has: here one prepared loader plays all of them.

``isinstance`` says which part a prepared loader plays; calling a class makes one that plays it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from notebook_accel.config.loading import DataLoaderConfiguration, checked_rng_types
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.data.prepare import prepare_loader
from notebook_accel.data.skip import skip_first_batches
from notebook_accel.ranks.seeding import share_generator, share_rng_states
from notebook_accel.ranks.world import World


class _Role(type):
    """Takes prepared loaders for instances, where ``plays`` agrees."""

    def __instancecheck__(cls, one: Any) -> bool:
        if super().__instancecheck__(one):  # of a class of the person's own
            return True
        plays = vars(cls).get("plays")
        return plays is not None and isinstance(one, PreparedLoader) and bool(plays(one))

    def __subclasscheck__(cls, kind: type) -> bool:
        if super().__subclasscheck__(kind):
            return True
        return "plays" in vars(cls) and issubclass(kind, PreparedLoader)


class DataLoaderAdapter(metaclass=_Role):
    """A loader that keeps its place: ``state_dict`` and ``load_state_dict``; reads all it is given.

    ``kwargs`` are arguments of ``torch.utils.data.DataLoader``.
    """

    def __new__(  # type: ignore[misc]
        cls,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> PreparedLoader:
        """Make it."""
        source: DataLoader[Any] = DataLoader(dataset, batch_sampler=batch_sampler, **kwargs)
        loading = DataLoaderConfiguration(use_stateful_dataloader=use_stateful_dataloader)
        return prepare_loader(source, World.alone(), put_on_device=False, loading=loading)

    @staticmethod
    def plays(one: PreparedLoader) -> bool:
        """Every prepared loader does."""
        return True


class DataLoaderShard(metaclass=_Role):
    """A loader by which each rank reads for itself; it reads all that its samplers give.

    So they are to give this rank's samples only (``BatchSamplerShard``). ``rng_types`` and
    ``synchronized_generator`` are brought to where rank 0's stand at the start of each pass.
    ``dl_kwargs`` are arguments of ``torch.utils.data.DataLoader``.

    Ranks: all ranks make it, and iterate it together.
    """

    def __new__(  # type: ignore[misc]
        cls,
        dataset: Any,
        device: torch.device | str | None = None,
        rng_types: Iterable[Any] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **dl_kwargs: Any,
    ) -> PreparedLoader:
        """Make it."""
        source: DataLoader[Any] = DataLoader(dataset, **dl_kwargs)
        world = World.join(device is not None and torch.device(device).type == "cpu")
        kinds = tuple(checked_rng_types(rng_types)) if rng_types else ()
        if world.size > 1 and (kinds or synchronized_generator is not None):
            name = "sampler" if source.batch_sampler is None else "batch_sampler"
            shared = _Shared(getattr(source, name), kinds, synchronized_generator, world)
            vars(source)[name] = shared
        loading = DataLoaderConfiguration(
            non_blocking=_non_blocking, use_stateful_dataloader=use_stateful_dataloader
        )
        alone = World.alone(str(device or "cpu"))
        loader = prepare_loader(source, alone, put_on_device=device is not None, loading=loading)
        return _begun(loader, skip_batches, iteration)

    @staticmethod
    def plays(one: PreparedLoader) -> bool:
        """Whether the ranks read for themselves."""
        return one.reading.dispatch is None


class DataLoaderDispatcher(metaclass=_Role):
    """A loader by which rank 0 reads for all.

    ``slice_fn`` is not needed: no batch is ever cut. ``dl_kwargs`` are arguments of
    ``torch.utils.data.DataLoader``.

    Ranks: all ranks make it, and iterate it together.
    """

    def __new__(  # type: ignore[misc]
        cls,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Any = None,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **dl_kwargs: Any,
    ) -> PreparedLoader:
        """Make it."""
        source: DataLoader[Any] = DataLoader(dataset, **dl_kwargs)
        world = World.join()
        loading = DataLoaderConfiguration(
            split_batches=split_batches,
            dispatch_batches=True,
            non_blocking=_non_blocking,
            use_stateful_dataloader=use_stateful_dataloader,
        )
        loader = prepare_loader(source, world, world.rank, world.size, True, None, loading)
        return _begun(loader, skip_batches, iteration)

    @staticmethod
    def plays(one: PreparedLoader) -> bool:
        """Whether rank 0 reads for all."""
        return one.reading.dispatch is not None


class DataLoaderStateMixin(metaclass=_Role):
    """What a loader knows of its end: ``end_of_dataloader`` and ``remainder``.

    A loader of your own that derives from it keeps both; ``gather_for_metrics`` and accumulation
    ask prepared loaders only.
    """

    end_of_dataloader = False
    remainder = -1

    def reset(self) -> None:
        """Forget the last pass."""
        self.end_of_dataloader = False
        self.remainder = -1

    def begin(self) -> None:
        """Begin a pass: how many samples its last step will have, where that can be known."""
        self.reset()
        length = getattr(self, "total_dataset_length", None)
        size = getattr(self, "total_batch_size", None)
        if length is not None and size and not getattr(self, "_drop_last", False):
            self.remainder = int(length) % int(size)

    def end(self) -> None:
        """End the pass."""

    @staticmethod
    def plays(one: PreparedLoader) -> bool:
        """Every prepared loader does."""
        return True


class _Shared:
    """A sampler or batch sampler, before each pass of which ranks share random numbers."""

    def __init__(self, batches: Any, kinds: Any, generator: Any, world: World) -> None:
        self._batches = batches
        self._kinds = kinds
        self._generator = generator
        self._world = world

    def __iter__(self) -> Iterator[Any]:
        share_rng_states(self._kinds, self._world)
        if self._generator is not None:
            share_generator(self._generator, self._world)
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name in ("_batches", "sampler"):  # not made yet; and nobody is to exchange the sampler
            raise AttributeError(name)
        return getattr(self._batches, name)


def _begun(loader: PreparedLoader, skip_batches: int, iteration: int) -> PreparedLoader:
    if iteration:
        loader.set_epoch(iteration)
    skipped = skip_first_batches(loader, skip_batches) if skip_batches else loader
    assert isinstance(skipped, PreparedLoader)
    return skipped
