"""A dispatcher: every rank, whenever it is free, takes the most urgent action that it can run.

Each F and I has a due date, ``due + microbatch * period`` by kind and stage; weight gradients fill
idle time. A forward may start no earlier than ``slack`` before it is due. Memory is never overrun:
a forward waits until it fits, and leaves room for one microbatch of each later stage of its rank,
so that what is begun can be finished.

The functions are plain loops over flat sequences of numbers, so that a compiler for numeric Python
can take them as they are; they give the same order either way. ``Dispatcher`` is how to use them.
Kinds are numbers here: 0 is F, 1 is I, 2 is W. What there is one of for each kind and stage is at
``kind * S + stage``.
"""

from __future__ import annotations

from typing import Any

NEVER = 1e300
_SMALL = 1e-9


def arrival(sizes: Any, times: Any, ends: Any, kind: int, stage: int, microbatch: int) -> Any:
    """When what an F or I needs from its neighbour is there."""
    S, M = sizes[1], sizes[2]
    if kind == 0:
        if stage == 0:
            return 0.0
        return ends[(stage - 1) * M + microbatch] + times[3 * S + stage - 1]
    if stage == S - 1:
        return ends[stage * M + microbatch]
    return ends[(S + stage + 1) * M + microbatch] + times[4 * S + stage]


def look(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    due: Any,
    rules: Any,
    ends: Any,
    counts: Any,
    state: Any,
    rank: int,
    now: float,
) -> Any:
    """What a rank could do: the kind, stage and due date of the most urgent F or I, or -1; when the
    next of those that are known comes, and the earliest due date among them; the stage of the W
    that is due first, or -1; and whether memory keeps an F from starting."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    best, best_kind, best_key = -1, -1, NEVER
    coming, coming_key = NEVER, NEVER
    weight, weight_key = -1, NEVER
    full = False
    room = memory[2 * S + rank] - state[3 * P + rank] + _SMALL
    for place in range(layout[2 * S + rank + 1] - 1, layout[2 * S + rank] - 1, -1):
        s = layout[S + place]
        for kind in range(1, -1, -1):
            k = counts[kind * S + s]
            if k >= M:
                continue
            ready = arrival(sizes, times, ends, kind, s, k)
            if ready >= NEVER:
                continue
            key = due[kind * S + s] + k * rules[0]
            if kind == 0:
                ready = max(ready, key - rules[3])
                if memory[s] > room:
                    full = full or ready <= now + _SMALL
                    continue
            if ready > now + _SMALL:
                coming, coming_key = min(coming, ready), min(coming_key, key)
            elif key < best_key:
                best, best_kind, best_key = s, kind, key
        if counts[s] == counts[S + s]:
            room -= memory[s]
        k = counts[2 * S + s]
        if k < counts[S + s] and due[S + s] + k * rules[0] < weight_key:
            weight, weight_key = s, due[S + s] + k * rules[0]
    return best_kind, best, best_key, coming, coming_key, weight, full


def begin(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    ends: Any,
    counts: Any,
    state: Any,
    order: Any,
    rank: int,
    now: float,
    kind: int,
    stage: int,
) -> Any:
    """Run an action, and tell the rank that waits for it. Gives its end."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    end = now + times[kind * S + stage]
    k = counts[kind * S + stage]
    counts[kind * S + stage] = k + 1
    order[3 * M * layout[2 * S + rank] + counts[3 * S + rank]] = (kind * S + stage) * M + k
    counts[3 * S + rank] += 1
    state[rank] = state[P + rank] = end
    if state[2 * P + rank] < 0:
        state[2 * P + rank] = now
    if kind == 2:
        state[3 * P + rank] -= memory[S + stage]
        return end
    ends[(kind * S + stage) * M + k] = end
    other, hop = stage + 1, times[3 * S + stage]
    if kind == 0:
        state[3 * P + rank] += memory[stage]
    else:
        state[3 * P + rank] += memory[S + stage] - memory[stage]
        other, hop = stage - 1, times[4 * S + stage - 1]
    if 0 <= other < S and layout[other] != rank:
        q = layout[other]
        state[q] = min(state[q], max(end + hop, state[P + q]))
    return end


def reset(sizes: Any, ends: Any, counts: Any, state: Any) -> None:
    """Nothing is done yet."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    for i in range(2 * S * M):
        ends[i] = NEVER
    for i in range(3 * S + P):
        counts[i] = 0
    for rank in range(P):
        state[rank] = 0.0  # when it looks again
        state[P + rank] = 0.0  # busy until
        state[2 * P + rank] = -1.0  # its first start
        state[3 * P + rank] = 0.0  # what it holds


def dispatch(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    due: Any,
    rules: Any,
    ends: Any,
    counts: Any,
    state: Any,
    order: Any,
) -> Any:
    """The makespan, or the span, of the order that these due dates give; ``NEVER`` if it gets
    stuck. See ``Dispatcher`` for the arguments."""
    P, S = sizes[0], sizes[1]
    patience, fill = rules[1], rules[2]
    reset(sizes, ends, counts, state)
    left, result = 3 * S * sizes[2], 0.0
    while left > 0:
        rank = 0
        for q in range(1, P):
            if state[q] < state[rank]:
                rank = q
        now = state[rank]
        if now >= NEVER:
            return NEVER
        kind, stage, key, coming, coming_key, weight, full = look(
            sizes, layout, times, memory, due, rules, ends, counts, state, rank, now
        )
        if kind >= 0:
            length = times[kind * S + stage]
            if coming_key < key - _SMALL and coming - now < patience * length:
                state[rank] = coming
                continue
        elif weight >= 0 and (full or coming - now >= fill * times[2 * S + weight] - _SMALL):
            kind, stage = 2, weight
        else:
            state[rank] = coming
            continue
        end = begin(
            sizes, layout, times, memory, ends, counts, state, order, rank, now, kind, stage
        )
        left -= 1
        result = max(result, end - state[2 * P + rank] if sizes[3] else end)
    return result


FUNCTIONS = (arrival, look, begin, reset, dispatch)
"""In the order in which they use each other."""
