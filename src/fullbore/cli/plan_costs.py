"""What ``fullbore plan`` is told about costs: of ranks, of stages, of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from fullbore.errors import FullboreError, ParameterError
from fullbore.plan import LIMITS, LayerCosts, Memory, layer_costs, parse_memory, transformer
from fullbore.sim import Costs, UniformCosts, load_costs


def _activations(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        held, kept = map(float, value.split(","))
    except ValueError:
        held = kept = -1.0
    if not 0 <= kept <= held < float("inf"):
        raise click.BadParameter(f"{value!r}; give what is held from F to I, and what from I to W")
    return held, kept


def _layers(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Costs | None:
    if value is None:
        return None
    try:
        return layer_costs(load_costs(value))
    except FullboreError as error:
        raise click.BadParameter(str(error)) from error


def _model(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Costs | None:
    if value is None:
        return None
    try:
        numbers = [*map(int, value.split(","))]
        layers, hidden, heads, sequence, vocabulary = numbers + [0] * (len(numbers) == 4)
        return transformer(
            layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=vocabulary
        )
    except ParameterError as error:
        raise click.BadParameter(str(error)) from error
    except ValueError:
        raise click.BadParameter(
            f"{value!r}; give whole numbers: layers, hidden size, heads, sequence length, and the "
            "vocabulary if the model has embedding and head"
        ) from None


def _limits(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[Memory, ...] | None:
    if value is None:
        return None
    try:
        return tuple(map(parse_memory, value.split(",")))
    except ParameterError as error:
        raise click.BadParameter(str(error)) from error


activations_option = click.option(
    "--activation-bytes",
    "activations",
    callback=_activations,
    metavar="F_TO_I,I_TO_W",
    help="What a rank holds of a microbatch from F to I and from I to W, for costs given as "
    "numbers.  [default: 1 until W]",
)
layers_option = click.option(
    "--layer-costs",
    "layers",
    callback=_layers,
    metavar="FILE",
    help="A .json file of costs with a number a layer, to be split into stages.",
)
model_option = click.option(
    "--model",
    callback=_model,
    metavar="LAYERS,HIDDEN,HEADS,SEQUENCE[,VOCABULARY]",
    help="A transformer of such a size: costs by formula, in 10^12 operations, to be split.",
)
frontier_option: Callable[[Any], Any] = click.option(
    "--frontier",
    callback=_limits,
    is_flag=False,
    flag_value=",".join(f"{limit:g}x" for limit in LIMITS),
    metavar="[LIMITS]",
    help="Plan for each of several memory limits, such as 0.5x,1x,2x, and say what less costs. "
    "-o writes the picture.",
)


def chosen_costs(
    costs: Costs | None,
    activations: tuple[float, float] | None,
    layers: LayerCosts | None,
    model: LayerCosts | None,
) -> Costs:
    """The costs that the options mean.

    Raises:
        click.UsageError: they contradict each other.
    """
    given = [found for found in (costs, layers, model) if found is not None]
    if len(given) > 1:
        raise click.UsageError("give one of --costs, --layer-costs and --model")
    found = given[0] if given else UniformCosts(F=1, I=1, W=1)
    if not isinstance(found, UniformCosts):
        if activations is not None:
            raise click.UsageError("--activation-bytes is for costs given as numbers")
        return found
    held, kept = (1.0, 1.0) if activations is None else activations
    return replace(found, activation_bytes=held, kept_bytes=kept)
