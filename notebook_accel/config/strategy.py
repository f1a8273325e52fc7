"""Which strategy an Accelerator has: its argument, else a plugin, else the launch, else none.

None is for ``strategies.registry.build`` to decide: one device, or data parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from notebook_accel.config.adoption import adopt, adopted
from notebook_accel.config.contradictions import refuse_unfit
from notebook_accel.config.deepspeed import (
    DeepSpeed,
    DeepSpeedPlugin,
    DeepSpeedPlugins,
    refuse_without_package,
)
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.megatron import MegatronLMPlugin, TorchTensorParallelPlugin
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.placement import Placement
from notebook_accel.config.resolve import RunConfig, as_ranks_will
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.sources import ARGUMENT, DEFAULT, Source
from notebook_accel.config.values import check
from notebook_accel.config.wishes import DDP, FSDP, Strategy, refuse_class
from notebook_accel.errors import ConfigError, NotHere

_Face = TypeVar("_Face")


class Plugin(Protocol):
    """The settings of one strategy under Accelerate's names; without any it asks the environment.

    A class of plugins is one row of ``FACES``.
    """

    def wish(self) -> Strategy:
        """Give the strategy that they ask for."""
        ...


@dataclass(frozen=True)
class Face:
    """A class of plugins, and the word of the setting ``strategy`` that asks for the same."""

    kind: type[Any]
    word: str | None = None


# The argument of Accelerator that takes each.
FACES: dict[str, Face] = {
    "fsdp_plugin": Face(FullyShardedDataParallelPlugin, "fsdp"),
    "megatron_lm_plugin": Face(MegatronLMPlugin, "megatron_lm"),
    "torch_tp_plugin": Face(TorchTensorParallelPlugin),
    "deepspeed_plugin": Face(DeepSpeedPlugin, "deepspeed"),
    "deepspeed_plugins": Face(DeepSpeedPlugin),
}
# Names of strategies that no setting has: one must say how many ranks work together.
_NO_WORDS = {
    "tensor": "TensorParallel(size=2)",
    "pipeline": "Pipeline(stages=2)",
    "sequence": "SequenceParallel(size=2)",
}


@dataclass(frozen=True)
class Ways:
    """What an Accelerator was told of its strategy; ``launched`` counts for who says nothing.

    ``plugins`` are its arguments of that kind by name, None for those that were left out.
    """

    strategy: Strategy | str | None = None
    plugins: Mapping[str, Any] = field(default_factory=dict)
    axes: ParallelismConfig | None = None
    launched: Strategy | None = None


@dataclass(frozen=True)
class Chosen:
    """A wish, and the plugin and axes of Accelerate's that say the same, where there are any."""

    wish: Strategy | None
    plugin: Plugin | None = None
    axes: ParallelismConfig | None = None


def chosen_strategy(ways: Ways, handlers: Handlers, asked: RunConfig, world_size: int) -> Chosen:
    """Find the strategy; the settings of one that is named by a word are what ``asked`` has.

    Errors: ConfigError for two that exclude each other, and for what is none.
    """
    refuse_class(ways.strategy)
    refuse_name(ways.strategy)
    ways = _under_own_names(ways)
    strategy = ways.strategy
    axes = adopted("parallelism_config", ways.axes, ParallelismConfig)
    if isinstance(strategy, str):
        check(SETTINGS["strategy"], strategy)
    name, plugin = _given(ways.plugins)
    if (axes or strategy or ways.launched) is None and asked.use_parallelism_config:
        axes = _made(ParallelismConfig, asked)
    if strategy is not None and (plugin is not None or axes is not None):
        raise _two(f"strategy={strategy!r}", "parallelism_config" if plugin is None else name)
    if plugin is None and axes is None:
        # A launch's DDP gives way to the settings of DDP that the script itself has.
        if strategy is None and not (handlers.strategy(None) and isinstance(ways.launched, DDP)):
            strategy = ways.launched
        if isinstance(strategy, Strategy):
            return Chosen(handlers.strategy(strategy))
    word = str(strategy or asked.strategy)
    if plugin is None:
        if strategy is None and ways.axes is None:
            refuse_unfit(asked)
        plugin = _named(word, asked, ARGUMENT if strategy else asked.origin("strategy"))
    if axes is not None:
        return Chosen(_meeting(axes.wish(world_size, _shards(plugin)), handlers), plugin, axes)
    if plugin is not None:
        return Chosen(_meeting(plugin.wish(), handlers), plugin)
    wish = handlers.strategy(None)
    return Chosen(DDP() if word == "ddp" and wish is None else wish)


def check_launch(
    asked: RunConfig, wish: Strategy | None, env: Mapping[str, str], place: Placement
) -> None:
    """Refuse a launch whose strategy cannot be, before any rank has started.

    It is what every ``Accelerator()`` without arguments would say: of the launch's ``wish``, of
    what it ``asked``, and of ``env``, which ranks will have. ``place`` is any rank's.

    Errors: ConfigError; MissingPackage; NotHere.
    """
    if asked.num_processes is None:  # now it is known, and what contradicts it
        asked = RunConfig.of({**asked.layer(), "num_processes": (place.size, DEFAULT)})
    with as_ranks_will(env):
        chosen = chosen_strategy(Ways(launched=wish), Handlers(), asked, place.size).wish
    if chosen is not None:
        chosen.check_fit(place, str(settled(asked, chosen).mixed_precision))


def refuse_name(strategy: Any) -> None:
    """Raise ConfigError for the name of a strategy that is asked for by a wish alone."""
    if isinstance(strategy, str) and strategy in _NO_WORDS:
        raise ConfigError(
            f"strategy={strategy!r} does not say how many ranks work together",
            "it is asked for by a value that says it; words are for strategies of all ranks",
            f"write strategy={_NO_WORDS[strategy]}",
        )


def wish_of(strategy: Any) -> Strategy | str | None:
    """Give what a launch's ``strategy`` asks for; a plugin asks for its wish.

    Errors: ConfigError for what is none.
    """
    if strategy is None or isinstance(strategy, (Strategy, str)):
        return strategy
    return _adopted(_argument_of(strategy), strategy).wish()


def _under_own_names(ways: Ways) -> Ways:
    """Take a plugin or axes that were passed as ``strategy`` as the arguments that they are."""
    strategy = ways.strategy
    if strategy is None or isinstance(strategy, (Strategy, str)):
        return ways
    if isinstance(ours := adopt(strategy, ParallelismConfig), ParallelismConfig):
        if ways.axes is not None:
            raise _two("strategy=ParallelismConfig(...)", "parallelism_config")
        return replace(ways, strategy=None, axes=ours)
    name = _argument_of(strategy)
    if ways.plugins.get(name) is not None:
        raise _two(f"strategy={type(strategy).__name__}(...)", name)
    return replace(ways, strategy=None, plugins={**ways.plugins, name: strategy})


def _argument_of(plugin: Any) -> str:
    for name, face in FACES.items():
        if isinstance(adopt(plugin, face.kind), face.kind):
            return name
    raise ConfigError(
        f"strategy={plugin!r:.80} is no strategy",
        "it says how models lie across ranks: a word, a wish such as FSDP(), or a plugin",
        'write, for example, strategy="fsdp" or strategy=FSDP(replicas=2)',
    )


def settled(asked: RunConfig, wish: Strategy | None) -> RunConfig:
    """Give ``asked`` with what ``wish`` says of other settings, as its engine's own file may.

    Errors: ConfigError where both say something, and not the same.
    """
    for name, value in ({} if wish is None else wish.says()).items():
        origin = asked.origin(name)
        unsaid = asked[name] == SETTINGS[name].default and origin.kind != "argument"
        if not unsaid and asked[name] != value:
            where = "" if origin.kind in ("argument", "default") else f" (from {origin})"
            raise ConfigError(
                f"{name}={asked[name]!r}{where}, but {type(wish).__name__} has {name}={value!r}",
                "both say it, and one run can only follow one of them",
                "leave one of them out, or write the same value in both",
            )
        asked = asked.but(**{name: value})
    return asked


def _meeting(wish: Strategy, handlers: Handlers) -> Strategy:
    """Give what a plugin asks for, its gradients meeting as the handlers say."""
    return handlers.strategy(None if wish == DDP() else wish) or wish


def _given(plugins: Mapping[str, Any]) -> tuple[str, Plugin | None]:
    """Take the one plugin that was given, Accelerate's own too, as ours."""
    given = {name: one for name, one in plugins.items() if one is not None}
    several = given.get("deepspeed_plugins", given.get("deepspeed_plugin"))
    if isinstance(several, Mapping) and len(given) == 1:
        return "deepspeed_plugin", DeepSpeedPlugins(several)
    if len(given) > 1:
        raise _two(*list(given)[:2])
    for name, plugin in given.items():
        return name, _adopted(name, plugin)
    return "", None


def _named(word: str, asked: RunConfig, source: Source) -> Plugin | None:
    """Make the plugin of a strategy that is asked for by a word, which stands at ``source``."""
    kind = next((face.kind for face in FACES.values() if face.word == word), None)
    plugin = None if kind is None else _made(kind, asked)
    if isinstance(plugin, DeepSpeedPlugin) and isinstance(plugin.wish(), DeepSpeed):
        refuse_without_package(source.quote("strategy", word), source.write("strategy", "fsdp"))
    return plugin


def _made(kind: type[_Face], asked: RunConfig) -> _Face:
    """Make a plugin or axes of what the settings say; errors tell where it was said."""
    try:
        return kind()
    except (ConfigError, NotHere) as error:
        for name in asked.given():
            short = name.removeprefix("fsdp_").removeprefix("megatron_lm_")
            short = short.removeprefix("parallelism_config_")
            origin = asked.origin(name)
            if origin.kind != "argument" and re.search(rf"\b{short}\b", error.what):
                raise error.but(what=f"{error.what} (from {origin})") from None
        raise


def _adopted(name: str, plugin: Any) -> Plugin:
    kind = FACES[name].kind
    ours = adopt(plugin, kind)
    if isinstance(ours, kind):
        return cast("Plugin", ours)
    raise ConfigError(
        f"{name}={plugin!r} is no {kind.__name__}",
        "it holds the settings of one strategy under Accelerate's names",
        f"write {name}={kind.__name__}(...), or pass a wish as strategy=",
    )


def _shards(plugin: Plugin | None) -> FSDP | DeepSpeed | None:
    """Give how axes are to shard each copy of a model; None if nobody said it."""
    wish = None if plugin is None else plugin.wish()
    if isinstance(wish, (FSDP, DeepSpeed)):
        return wish
    if wish is None or isinstance(wish, DDP):
        return None
    raise _two("parallelism_config", type(plugin).__name__)


def _two(one: str, other: str) -> ConfigError:
    return ConfigError(
        f"{one} and {other} are both given",
        "both say how models lie across ranks, and nobody could say which of them counts",
        "leave one of them out",
    )
