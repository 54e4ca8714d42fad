"""Improves an order directly: an action moves a few places earlier or later in its rank's program.

Loops over flat sequences of numbers as in ``fullbore.schedules.dispatch``, whose codes these are.
"""

from __future__ import annotations

from typing import Any

NEVER = 1e300
_SMALL = 1e-9


def advance(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    order: Any,
    ends: Any,
    heads: Any,
    state: Any,
    rank: int,
) -> Any:
    """Run a rank's program as far as what it needs is known; whether memory was enough. Where an F
    or I has not run, its end is ``NEVER``."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    first, last = 3 * M * layout[2 * S + rank], 3 * M * layout[2 * S + rank + 1]
    now, held = state[rank], state[P + rank]
    fits = True
    while first + heads[rank] < last:
        code = order[first + heads[rank]]
        kind, s, k = code // (S * M), code // M % S, code % M
        ready = ends[(S + s) * M + k]
        if kind == 0:
            ready = 0.0 if s == 0 else ends[(s - 1) * M + k] + times[3 * S + s - 1]
            fits = fits and held + memory[s] <= memory[2 * S + rank] + _SMALL
            held += memory[s]
        elif kind == 1:
            ready = ends[s * M + k]
            if s < S - 1:
                ready = max(ready, ends[(S + s + 1) * M + k] + times[4 * S + s])
        if ready >= NEVER:
            held -= memory[s] if kind == 0 else 0.0
            break
        now = max(now, ready) + times[kind * S + s]
        if kind < 2:
            ends[(kind * S + s) * M + k] = now
        if kind > 0:
            held += memory[S + s] - memory[s] if kind == 1 else -memory[S + s]
        if state[2 * P + rank] < 0:
            state[2 * P + rank] = now - times[kind * S + s]
        heads[rank] += 1
    state[rank], state[P + rank] = now, held
    return fits


def length(
    sizes: Any, layout: Any, times: Any, memory: Any, order: Any, ends: Any, heads: Any, state: Any
) -> Any:
    """The makespan, or the span, of an order; ``NEVER`` if it cannot run or needs more memory."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    for i in range(2 * S * M):
        ends[i] = NEVER
    for rank in range(P):
        heads[rank] = 0
        state[rank], state[P + rank], state[2 * P + rank] = 0.0, 0.0, -1.0
    left = 3 * S * M
    while left > 0:
        before = left
        for rank in range(P):
            done = heads[rank]
            if not advance(sizes, layout, times, memory, order, ends, heads, state, rank):
                return NEVER
            left -= heads[rank] - done
        if left == before:
            return NEVER
    result = 0.0
    for rank in range(P):
        result = max(result, state[rank] - state[2 * P + rank] if sizes[3] else state[rank])
    return result


def draw(seed: Any, limit: int) -> Any:
    """A number from 0 to ``limit`` - 1: the high bits of a 31-bit linear congruential generator."""
    seed[0] = (seed[0] * 1103515245 + 12345) % 2147483648
    return seed[0] // 65536 % limit if limit < 16384 else seed[0] % limit


def move(order: Any, source: int, target: int) -> None:
    """Take the action at ``source`` to ``target``; those between make room."""
    code = order[source]
    step = 1 if target > source else -1
    for place in range(source, target, step):
        order[place] = order[place + step]
    order[target] = code


def passes(sizes: Any, order: Any, source: int, target: int) -> Any:
    """Whether an action may go so far: not past the same work of another microbatch, nor past other
    work on its own microbatch and stage."""
    S, M = sizes[1], sizes[2]
    code = order[source]
    step = 1 if target > source else -1
    for place in range(source + step, target + step, step):
        other = order[place]
        if other // M == code // M or other % (S * M) == code % (S * M):
            return False
    return True


def swaps(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    order: Any,
    best: Any,
    ends: Any,
    heads: Any,
    state: Any,
    seed: Any,
    settings: Any,
) -> Any:
    """Try moves on ``order``, keep those that make it no more than a tolerance longer, and the best
    order in ``best``. Gives the best length.

    The first four are those of ``Dispatcher``; ``ends``, ``heads`` and ``state`` are scratch: 2 S
    M, P and 3 P numbers. ``seed`` holds the generator's state. ``settings`` are how many moves, the
    tolerance at first, which falls to 0, and the length of the best order so far.
    """
    S, M = sizes[1], sizes[2]
    current = length(sizes, layout, times, memory, order, ends, heads, state)
    record = settings[2]
    steps = int(settings[0])
    for step in range(steps):
        stage = draw(seed, S)
        rank = layout[stage]
        first, last = 3 * M * layout[2 * S + rank], 3 * M * layout[2 * S + rank + 1]
        source = first + draw(seed, last - first)
        reach = 1 + draw(seed, 8)
        target = source + reach if draw(seed, 2) == 0 else source - reach
        if target < first or target >= last or not passes(sizes, order, source, target):
            continue
        move(order, source, target)
        found = length(sizes, layout, times, memory, order, ends, heads, state)
        if found > current + settings[1] * (steps - step) / steps * draw(seed, 1024) / 1024:
            move(order, target, source)
            continue
        current = found
        if found < record:
            record = found
            for place in range(3 * S * M):
                best[place] = order[place]
    return record


FUNCTIONS = (advance, length, draw, move, passes, swaps)
"""In the order in which they use each other."""
