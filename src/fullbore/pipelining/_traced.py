"""Stages of a traced model: what its graph says about how they are connected."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch import fx, nn

from fullbore.errors import ParameterError
from fullbore.runtime.tree import Tree

_Source = tuple[int, int | None]
"""A stage, and which of its outputs (None: it has one)."""


def wire(module: nn.Module, stage_index: int, graph: fx.Graph) -> nn.Module:
    """What to call for a stage: ``module`` itself, if it takes what the stage before gives as it
    comes; otherwise a module that hands it over in the order of ``module``'s own inputs.

    Raises:
        ParameterError: somewhere in the graph, a stage's output goes elsewhere than to the next
            stage.
    """
    stages = [node for node in graph.nodes if node.op == "call_module"]
    index_of = {node: index for index, node in enumerate(stages)}
    _refuse_skips(graph, index_of)
    if stage_index == 0:
        return module
    arguments = list(stages[stage_index].args)
    sources = [_source(argument, index_of) for argument in arguments]
    picks = [source[1] for source in sources if source is not None]
    given = [source is not None for source in sources]
    outputs = {source for source, _ in _uses(graph, index_of) if source[0] == stage_index - 1}
    in_order = picks in ([None], list(range(len(outputs))))
    if in_order and given == sorted(given, reverse=True):
        return module
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]  # type: ignore[union-attr]
    chosen = {n: s[1] for n, s in zip(names, sources, strict=True) if s is not None}
    return Wired(module, chosen)


class Wired(nn.Module):
    """Calls a stage's module by its inputs' names.

    Args:
        module: the stage's module.
        picks: for each input that the stage before gives, which of its outputs; None for the only
            one. The other inputs are keyword arguments of the step.
    """

    def __init__(self, module: nn.Module, picks: dict[str, int | None]) -> None:
        super().__init__()
        self.module, self._picks = module, picks

    def forward(self, *received: Tree, **kwargs: Tree) -> Tree:
        """The module's output."""
        named = {n: received[0 if pick is None else pick] for n, pick in self._picks.items()}
        return self.module(**named, **kwargs)


def _refuse_skips(graph: fx.Graph, index_of: dict[Any, int]) -> None:
    last = len(index_of) - 1
    for (stage, _), user in _uses(graph, index_of):
        if user is None and stage != last:
            raise ParameterError(
                f"stage {stage} gives a part of the model's result past stage {last}, the last "
                "one: a skip connection, which no schedule carries. Split the model elsewhere, or "
                "return it from stage to stage"
            )
        if user is not None and user != stage + 1:
            raise ParameterError(
                f"a skip connection leads from stage {stage} to stage {user}; a schedule only "
                "carries tensors from each stage to the next. Split the model elsewhere, or hand "
                "the tensor on through the stages between"
            )


def _uses(graph: fx.Graph, index_of: dict[Any, int]) -> Iterator[tuple[_Source, int | None]]:
    """Each use of a stage's output: by a stage, or (None) in the model's result."""
    for node in graph.nodes:
        if node.op not in ("call_module", "output"):
            continue
        for argument in node.all_input_nodes:
            source = _source(argument, index_of)
            if source is not None:
                yield source, index_of.get(node)


def _source(argument: Any, index_of: dict[Any, int]) -> _Source | None:
    """Where an argument comes from; None for an input of the whole model."""
    pick = None
    while isinstance(argument, fx.Node) and argument.target is operator.getitem:
        argument, pick = argument.args[0], argument.args[1]
    stage = index_of.get(argument)
    return None if stage is None else (stage, pick)
