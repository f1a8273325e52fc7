"""Values that stages hand on: what a later stage uses goes through each stage before it.

torch's schedules bring a value that has a gradient to one stage only, and where ranks have several
stages each to the next one only. Handed on from stage to stage, each value has one taker.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node


def hand_on(pipe: Any) -> None:
    """Let each value of torch's ``pipe`` that a later stage uses go through those between.

    Values are expected as one block of memory each: gloo sends no views.
    """
    top: GraphModule = pipe.split_gm
    calls = [node for node in top.graph.nodes if node.op == "call_module"]
    stages = [pipe.get_stage_module(number) for number in range(len(calls))]
    for number, call in enumerate(calls[:-2]):
        made = pytree.tree_leaves(_output(stages[number]).args)
        for value in _parts(call) or [call]:
            later = [user for user in value.users if user in calls[number + 2 :]]
            if later:
                inside = made[0 if value is call else cast("int", value.args[1])]
                handed = _through(stages[number + 1], calls[number + 1], value, inside.meta["val"])
                for user in later:
                    user.replace_input_with(value, handed)
    for stage in stages:
        for node in [*_taken(stage), *_output(stage).all_input_nodes]:
            if isinstance(node.meta.get("val"), Tensor):
                node.meta["val"] = node.meta["val"].contiguous()
        stage.recompile()
    top.recompile()


def _through(stage: GraphModule, call: Node, value: Node, example: Tensor) -> Node:
    """Let the ``stage`` of ``call`` take ``value`` and put it out too; give what it puts out."""
    if value not in call.args:
        call.args = (*call.args, value)
        with stage.graph.inserting_before(_after_taken(stage)):
            stage.graph.placeholder(value.name).meta["val"] = example
    output = _output(stage)
    made = pytree.tree_leaves(output.args)
    if not _parts(call):  # it put out one value, by itself
        first = _part(call, 0)
        call.replace_all_uses_with(first, delete_user_cb=lambda user: user is not first)
    output.args = ((*made, _taken(stage)[call.args.index(value)]),)
    return _part(call, len(made))


def _part(call: Node, index: int) -> Node:
    """Take out of what ``call`` gives, after what is taken already: torch counts users."""
    last = (_parts(call) or [call])[-1]
    with call.graph.inserting_after(last):
        return call.graph.call_function(operator.getitem, (call, index))


def _parts(call: Node) -> list[Node]:
    return [user for user in call.users if user.target is operator.getitem]


def _taken(stage: GraphModule) -> list[Node]:
    return [node for node in stage.graph.nodes if node.op == "placeholder"]


def _after_taken(stage: GraphModule) -> Node:
    found: Node = next(node for node in stage.graph.nodes if node.op != "placeholder")
    return found


def _output(stage: GraphModule) -> Node:
    found: Node = next(node for node in stage.graph.nodes if node.op == "output")
    return found
