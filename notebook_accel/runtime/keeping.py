"""What an Accelerator keeps: checkpoints of a run, exported weights, where a project's files lie.

Saving says nothing to other ranks, so it may be called by the main rank alone; loading is done by
all ranks together.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from notebook_accel.checkpoint import numbered, sharded, weights
from notebook_accel.checkpoint.background import Background
from notebook_accel.checkpoint.manifest import in_one_step
from notebook_accel.checkpoint.names import load_plain, plain_state
from notebook_accel.checkpoint.sharded import Apart
from notebook_accel.checkpoint.state import Checkpoint, Snapshot, write_own, write_shared
from notebook_accel.config.misuse import needs
from notebook_accel.config.project import ProjectConfiguration
from notebook_accel.errors import ConfigError
from notebook_accel.events import tasks
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.live import LiveEvents
from notebook_accel.runtime.moment import Parts, give_back, take
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Engine

Folder = str | os.PathLike[str]
PLACES = (None, "cpu", "on_device")


class Keeping:
    """The part of an Accelerator that writes and reads files."""

    project_configuration: ProjectConfiguration
    _world: World
    _engine: Engine
    _clock: Clock
    _live: LiveEvents | None
    _wardrobe: Wardrobe
    _boundary: Callable[[], None]
    _check_process: Callable[[], None]

    def _begin_keeping(self) -> None:
        self._registered: list[tuple[Any, bool]] = []
        self._save_hooks: OrderedDict[int, Callable[..., None]] = OrderedDict()
        self._load_hooks: OrderedDict[int, Callable[..., None]] = OrderedDict()
        self._background = Background()
        self._memory: list[torch.Tensor] = []  # of the last copy that was written in the background

    @property
    def project_dir(self) -> str | None:
        """The project's folder."""
        return self.project_configuration.project_dir

    @property
    def save_iteration(self) -> int:
        """The number that the next automatically named checkpoint gets."""
        return self.project_configuration.iteration

    @save_iteration.setter
    def save_iteration(self, value: int) -> None:
        self.project_configuration.iteration = value

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes what all ranks share: rank 0, or the first of each machine."""
        if self._world.is_fake:  # its weights are nobody's, and a real file may be there
            return False
        if self.project_configuration.save_on_each_node:
            return self._world.placement.local_rank == 0
        return self._world.rank == 0

    def save_state(
        self,
        output_dir: Folder | None = None,
        safe_serialization: bool = True,
        *,
        async_save: bool = False,
        **save_model_func_kwargs: Any,
    ) -> str:
        """Write everything a run needs to go on; gives the folder.

        That is: models, optimizers, schedulers, loss scaler, the place in each loader, random
        numbers, registered objects. Without ``output_dir`` the folder follows from automatic
        naming. The folder's checkpoint before stays valid until this one is whole. With
        ``async_save`` it returns after a copy in memory (of this rank's parts, where models are
        sharded), and a thread writes; the next save, load or the end of training waits for it, and
        gets its error. The copy's memory is kept for the next such save, until ``free_memory``.
        Between two steps it is exact; inside an accumulation window the gradients of the window
        are not saved (a warning).

        Ranks: all ranks call it where models lie in pieces. Elsewhere any: nobody waits, and a rank
        that does not call it has no random numbers saved.
        Errors: CheckpointError for a numbered folder that holds a checkpoint already.
        """
        self._check_process()
        _refuse(save_model_func_kwargs, "save_state", ())
        self.wait_for_save()
        folder = self._place("save_state") if output_dir is None else Path(output_dir)
        if output_dir is None and self.should_save_model:
            numbered.refuse_overwriting(folder)
        if self._world.is_fake:
            print(f"note: a fake run saves nothing: {folder}")
            return os.fspath(folder)
        if self._clock.pending and not self._clock.sync:
            warnings.warn(
                "save_state() inside an accumulation window: its gradients so far are not saved; "
                "call it where accelerator.sync_gradients is True to resume exactly.",
                stacklevel=2,
            )
        folder.mkdir(parents=True, exist_ok=True)
        if self._engine.shares_states:
            self._world.wait()  # who is alone here shall be told so
        models = [self._engine.unwrap(model) for model in self._wardrobe.models]
        states = [
            plain_state(model, self._engine.kept_state(given))
            for model, given in zip(models, self._wardrobe.models, strict=True)
        ]
        for hook in list(self._save_hooks.values()):
            hook(models, states, os.fspath(folder))
        optimizers = [
            self._engine.kept_optimizer_state(one.inner) for one in self._wardrobe.optimizers
        ]
        snapshot = take(self._parts(), states, optimizers, self._world.device)
        if async_save:
            snapshot = snapshot.copied(self._memory)
        snapshot, parts = sharded.set_apart(snapshot, folder, self._world, async_save)
        root = folder.parent if output_dir is None else None
        job = partial(self._write, folder, root, parts, safe_serialization, snapshot)
        if async_save:
            self._background.start(job)
        else:
            job()
        if output_dir is None:
            self.save_iteration += 1
        return os.fspath(folder)

    def load_state(
        self,
        input_dir: Folder | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Go on where a checkpoint was saved, by this or another number of ranks.

        Without ``input_dir`` it is the newest complete one of automatic naming. The next pass of a
        loader that was saved in the middle of one is the rest of it. ``load_kwargs`` go to
        torch.load, ``strict`` to the model. States of registered objects are pickles: loading
        them runs code, so load only what you trust; everything else is read as plain data.

        Without an optimizer or scheduler prepared, as for an evaluation, theirs are not read.

        Ranks: all ranks call it, after preparing and registering the same things in the same order.
        Errors: CheckpointError for a folder that is absent, incomplete or does not fit; nothing
        has been loaded then.
        """
        place = load_model_func_kwargs.pop("map_location", None)
        _refuse(load_model_func_kwargs, "load_state", ("strict",))
        if place not in PLACES:
            raise ConfigError(
                f"map_location={place!r} is unknown",
                "states go to where their models and optimizers already are",
                'leave it out ("cpu" and "on_device" are accepted, for old scripts)',
            )
        self.wait_for_save()
        if self._world.is_fake:
            print("note: a fake run loads nothing")
            return
        self._boundary()
        self._world.wait()  # the main rank may be saving what is to be loaded
        root = self._root()
        if input_dir is not None:
            saved = Checkpoint(Path(input_dir))
        elif root is not None:
            saved = Checkpoint(numbered.newest(root, say=self._world.rank == 0))
        else:
            raise _nowhere("load_state")
        if root is not None:
            behind = [number + 1 for number in numbered.numbers(root)]
            self.save_iteration = max([self.save_iteration, *behind])
        kept = self._wardrobe
        saved.check(len(kept.optimizers), len(kept.schedulers), len(self._registered))
        with tasks.task("loading checkpoint"):
            self._load_models(saved, **load_model_func_kwargs)
            give_back(saved, self._parts(), self._world, load_kwargs or {})
        if self._live is not None:
            self._live.begin_at(self._clock.step, kept.loaders)
        if root is not None and self.should_save_model:
            numbered.sweep(root)
        self._world.wait()  # nobody may save over it while others still read

    def wait_for_save(self) -> None:
        """Wait until what ``async_save`` began is written.

        Errors: CheckpointError if it could not be written.
        """
        self._background.wait()

    def save_model(
        self,
        model: nn.Module,
        save_directory: Folder,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write a model's weights for others, in shards with an index if they are large.

        Names and ties are those of the plain module: ``load_state_dict`` of the file fits it, and
        ``load_weights(model, save_directory)`` reads them back, shards too.

        Ranks: all ranks, or the main rank alone; the main rank writes.
        """
        state = self.get_state_dict(model)
        if self.should_save_model:
            weights.export(state, Path(save_directory), max_shard_size, safe_serialization)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write ``obj`` to the file ``f`` by torch.save, or a state dict as safetensors.

        A file of a name appears in one step, whole.

        Ranks: all ranks, or the main rank alone; the main rank writes.
        """
        if not self.should_save_model:
            return
        if not isinstance(f, (str, os.PathLike)):
            torch.save(obj, f)
        elif safe_serialization:
            in_one_step(Path(f), partial(weights.write, obj))
        else:
            in_one_step(Path(f), partial(torch.save, obj))

    def register_for_checkpointing(self, *objects: Any, on_each_rank: bool = True) -> None:
        """Let ``save_state`` and ``load_state`` take care of these objects too.

        Each rank keeps and gets back its own state. ``on_each_rank=False`` keeps the main rank's
        only, for large objects that are alike everywhere (averaged weights).

        Ranks: all ranks register the same objects in the same order.
        Errors: ConfigError naming objects without ``state_dict`` and ``load_state_dict``.
        """
        unfit = [
            type(one).__name__
            for one in objects
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict"))
        ]
        if unfit:
            raise ConfigError(
                f"register_for_checkpointing got {', '.join(unfit)}",
                "an object is saved by its state_dict() and restored by its load_state_dict()",
                "give the class both methods, or register an object that holds its state",
            )
        self._registered += [(one, on_each_rank) for one in objects]

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(models, weights, output_dir)`` before each ``save_state``.

        A state that it removes from ``weights`` is not written: the hook has done so itself.
        """
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(models, input_dir)`` before each ``load_state``.

        A model that it removes from ``models`` is not loaded: the hook has done so itself.
        """
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Give the model's whole state, with the names of the person's own module.

        ``unwrap=False`` leaves the names as the wrappers have them.

        Ranks: all ranks call it.
        """
        needs(
            nn.Module,
            model,
            "get_state_dict()",
            "it gathers the weights of a model from wherever its parts are",
            "pass the model; accelerator.save(state, file) writes a state dict",
        )
        if not unwrap and not self._engine.shares_states:  # else wrappers have no names of it
            return model.state_dict()
        return plain_state(self._engine.unwrap(model), self._engine.state_dict(model))

    def _root(self) -> Path | None:
        """Where numbered checkpoints lie; None without automatic naming."""
        config = self.project_configuration
        if not config.automatic_checkpoint_naming:
            return None
        if config.project_dir is None:
            raise ConfigError(
                "automatic_checkpoint_naming needs a project_dir",
                "checkpoints are written to project_dir/checkpoints/checkpoint_0, _1, ...",
                "pass Accelerator(project_dir=...) or ProjectConfiguration(project_dir=...)",
            )
        return Path(config.project_dir) / "checkpoints"

    def _place(self, method: str) -> Path:
        root = self._root()
        if root is None:
            raise _nowhere(method)
        return numbered.place(root, self.save_iteration)

    def _parts(self) -> Parts:
        scaler = self._engine.precision.scaler
        return Parts(self._wardrobe, self._clock, scaler, self._registered)

    def _write(
        self, folder: Path, root: Path | None, parts: Apart, safe: bool, snapshot: Snapshot
    ) -> None:
        world = self._world
        parts.write()
        if not self.should_save_model:
            write_own(snapshot, folder, world.rank)
            return
        strategy = self._engine.wish.name
        write_shared(snapshot, folder, world.rank, world.size, strategy, safe, parts.name)
        if root is not None:
            numbered.keep(root, self.project_configuration.total_limit)

    def _load_models(self, saved: Checkpoint, strict: bool = True) -> None:
        models = [self._engine.unwrap(model) for model in self._wardrobe.models]
        wrapped = dict(zip(map(id, models), self._wardrobe.models, strict=True))
        for hook in list(self._load_hooks.values()):
            hook(models, os.fspath(saved.folder))
        parts = sharded.of(saved)
        for i, model in enumerate(models):
            state = saved.model(i)
            if parts is not None:
                state.update(parts.model(i, plain_state(model, model.state_dict())))
            load = partial(self._engine.load_into, wrapped[id(model)])
            load_plain(model, state, strict, load)


def _nowhere(method: str) -> ConfigError:
    return ConfigError(
        f"{method}() got no folder",
        "only with automatic naming it knows one",
        f'write {method}("path"), or set ProjectConfiguration(automatic_checkpoint_naming=True) '
        "and a project_dir",
    )


def _refuse(given: dict[str, Any], method: str, known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(
            f"{method}() got {', '.join(unknown)}",
            "this strategy's files need no such argument, and it would change nothing",
            "leave it out",
        )
