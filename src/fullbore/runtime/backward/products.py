"""The operations whose weight gradients can wait: what each must keep, and how it computes them.

Every formula is autograd's own for that operation, down to which factor is transposed, so that
gradients come out equal bit for bit and with the same strides. A linear layer is an addmm or an mm,
attention projections and einsum are mm or bmm, a recurrent cell is one addmm a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Node = Any
"""An autograd node; what it has saved goes by names that no type checker knows."""

Edges = Sequence[tuple[Node | None, int]]
"""What a node leads to, one for each operand; None where an operand is not in the graph."""

Gradients = Callable[[Tensor], Sequence[Tensor]]
"""From the gradient of an operation's result to those of its waiting operands, in order. One of a
broadcast operand is left for the engine to sum, which does the same for autograd's own nodes."""

Gradient = Callable[[Tensor], Tensor]
"""The same for a single operand."""


@dataclass(frozen=True, slots=True)
class Product:
    """How to defer one operation.

    Attributes:
        factors: the positions of the factors; none where the one beside the weight, such as the
            indices of an embedding, never has a gradient.
        needs: for each position, the slots of the saved tensors that its gradient needs.
        record: reads them, for the operands at the given positions, from the node that is running.
    """

    factors: tuple[int, ...]
    needs: tuple[tuple[str, ...], ...]
    record: Callable[[Node, Sequence[int]], Gradients]

    def has_constant_factor(self, edges: Edges) -> bool:
        """Whether data that needs no gradient, and so has no edge, enters the graph here."""
        return not self.factors or any(edges[position][0] is None for position in self.factors)

    def is_readable(self, node: Node, positions: Sequence[int]) -> bool:
        """Whether the saved tensors are at hand; a checkpoint, say, would recompute them."""
        for position in positions:
            for slot in self.needs[position]:
                if getattr(node, slot).unpack_hook is not None:
                    return False
        return True


def _check(kept: Tensor, version: int) -> None:
    # Autograd guards a saved tensor only until its node has run.
    if kept._version != version:
        raise RuntimeError(
            f"a tensor of shape {list(kept.shape)} that a weight gradient needs was modified in "
            "place between the input backward and the weight backward"
        )


def _is_column_major(sizes: Sequence[int], strides: Sequence[int], other: Tensor) -> bool:
    return strides[0] == 1 and strides[1] == sizes[0] and other.layout is torch.strided


def _scale(gradient: Tensor, factor: complex) -> Tensor:
    return gradient if factor == 1 else gradient * factor


def _left(
    saved: Tensor, sizes: Sequence[int], strides: Sequence[int], alpha: complex = 1
) -> Gradient:
    """Of the left factor of ``alpha * left @ saved``, which has these sizes and strides."""
    # On the graph it would keep the graph alive, and W would build another one.
    right, version = saved.detach().conj(), saved._version
    transposed = _is_column_major(sizes, strides, right)

    def gradient(dy: Tensor) -> Tensor:
        _check(right, version)
        return _scale(right.mm(dy.t()).t() if transposed else dy.mm(right.t()), alpha)

    return gradient


def _right(
    saved: Tensor, sizes: Sequence[int], strides: Sequence[int], alpha: complex = 1
) -> Gradient:
    """Of the right factor of ``alpha * saved @ right``, which has these sizes and strides."""
    left, version = saved.detach().conj(), saved._version
    transposed = _is_column_major(sizes, strides, left)

    def gradient(dy: Tensor) -> Tensor:
        _check(left, version)
        return _scale(dy.t().mm(left).t() if transposed else left.t().mm(dy), alpha)

    return gradient


def _each(gradients: Sequence[Gradient]) -> Gradients:
    return lambda dy: [gradient(dy) for gradient in gradients]


def _addmm(node: Node, positions: Sequence[int]) -> Gradients:
    alpha, beta = node._saved_alpha.conjugate(), node._saved_beta.conjugate()
    gradients: list[Gradient] = []
    for position in positions:
        if position == 0:
            gradients.append(lambda dy: _scale(dy, beta))
        elif position == 1:
            sizes, strides = node._saved_mat1_sym_sizes, node._saved_mat1_sym_strides
            gradients.append(_left(node._saved_mat2, sizes, strides, alpha))
        else:
            sizes, strides = node._saved_mat2_sym_sizes, node._saved_mat2_sym_strides
            gradients.append(_right(node._saved_mat1, sizes, strides, alpha))
    return _each(gradients)


def _mm(node: Node, positions: Sequence[int]) -> Gradients:
    gradients: list[Gradient] = []
    for position in positions:
        if position == 0:
            sizes, strides = node._saved_self_sym_sizes, node._saved_self_sym_strides
            gradients.append(_left(node._saved_mat2, sizes, strides))
        else:
            sizes, strides = node._saved_mat2_sym_sizes, node._saved_mat2_sym_strides
            gradients.append(_right(node._saved_self, sizes, strides))
    return _each(gradients)


def _bmm(node: Node, positions: Sequence[int]) -> Gradients:
    def gradient_at(position: int) -> Gradient:
        saved = node._saved_self if position else node._saved_mat2
        other, version = saved.detach().conj(), saved._version

        def gradient(dy: Tensor) -> Tensor:
            _check(other, version)
            turned = other.transpose(1, 2)
            return turned.bmm(dy) if position else dy.bmm(turned)

        return gradient

    return _each([gradient_at(position) for position in positions])


def _convolution(node: Node, positions: Sequence[int]) -> Gradients:
    x, weight = node._saved_input.detach(), node._saved_weight.detach()
    version = x._version
    options = (
        node._saved_bias_sym_sizes_opt,
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        node._saved_transposed,
        node._saved_output_padding,
        node._saved_groups,
        [position in positions for position in range(3)],
    )

    def gradients(dy: Tensor) -> Sequence[Tensor]:
        _check(x, version)
        # One call gives weight and bias.
        computed = torch.ops.aten.convolution_backward(dy, x, weight, *options)
        return [computed[position] for position in positions]

    return gradients


def _embedding(node: Node, _: Sequence[int]) -> Gradients:
    indices, version = node._saved_indices, node._saved_indices._version
    padding = node._saved_padding_idx
    if padding >= 1 << 63:
        # No padding is -1, which nodes give back as unsigned.
        padding -= 1 << 64
    options = (
        node._saved_weight_sym_argsize_0,
        padding,
        node._saved_scale_grad_by_freq,
        node._saved_sparse,
    )

    def gradients(dy: Tensor) -> Sequence[Tensor]:
        _check(indices, version)
        return (torch.ops.aten.embedding_backward(dy, indices, *options),)

    return gradients


PRODUCTS: Mapping[str, Product] = {
    "AddmmBackward0": Product((1, 2), ((), ("_raw_saved_mat2",), ("_raw_saved_mat1",)), _addmm),
    "MmBackward0": Product((0, 1), (("_raw_saved_mat2",), ("_raw_saved_self",)), _mm),
    "BmmBackward0": Product((0, 1), (("_raw_saved_mat2",), ("_raw_saved_self",)), _bmm),
    "ConvolutionBackward0": Product(
        (0, 1), (("_raw_saved_input", "_raw_saved_weight"),) * 3, _convolution
    ),
    "EmbeddingBackward0": Product((), (("_raw_saved_indices",),), _embedding),
}
"""By the class name of the autograd node."""
