"""A dispatcher: every rank, whenever it is free, takes the most urgent action that it can run.

Each F and I has a due date: that of a base, multiplied by the period, and a shift by kind and
stage. Weight gradients fill idle time. A forward may start no earlier than ``slack`` before it is
due. Memory is never overrun: a forward waits until it fits, and leaves room for one microbatch of
each later stage of its rank, so that what is begun can be finished.

The functions are plain loops over flat sequences of numbers, so that a compiler for numeric Python
can take them as they are; they give the same order either way. ``Dispatcher`` is how to use them.
Kinds are numbers here: 0 is F, 1 is I, 2 is W. What there is one of for each kind and stage is at
``kind * S + stage``. The next F or I of a stage is its *head*: ``counts`` says which microbatch's
it is, and ``ready`` when what it needs is there, ``NEVER`` where that is not known yet.
"""

from __future__ import annotations

from typing import Any

NEVER = 1e300
_SMALL = 1e-9


def look(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    base: Any,
    shift: Any,
    rules: Any,
    ready: Any,
    counts: Any,
    state: Any,
    rank: int,
    now: float,
) -> Any:
    """What a rank could do: the kind, stage and due date of the most urgent F or I, or -1; when the
    next of those that are known comes, and the earliest due date among them; and whether memory
    keeps an F from starting."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    best, best_kind, best_key = -1, -1, NEVER
    coming, coming_key = NEVER, NEVER
    full = False
    room = memory[2 * S + rank] - state[2 * P + rank] + _SMALL
    for place in range(layout[2 * S + rank + 1] - 1, layout[2 * S + rank] - 1, -1):
        s = layout[S + place]
        if ready[S + s] < NEVER:
            key = base[(S + s) * M + counts[S + s]] * rules[3] + shift[S + s]
            if ready[S + s] > now + _SMALL:
                coming, coming_key = min(coming, ready[S + s]), min(coming_key, key)
            elif key < best_key:
                best, best_kind, best_key = s, 1, key
        if ready[s] < NEVER:
            key = base[s * M + counts[s]] * rules[3] + shift[s]
            start = max(ready[s], key - rules[2])
            if memory[s] > room:
                full = full or start <= now + _SMALL
            elif start > now + _SMALL:
                coming, coming_key = min(coming, start), min(coming_key, key)
            elif key < best_key:
                best, best_kind, best_key = s, 0, key
        if counts[s] == counts[S + s]:
            room -= memory[s]
    return best_kind, best, best_key, coming, coming_key, full


def weight(
    sizes: Any, layout: Any, base: Any, shift: Any, rules: Any, counts: Any, rank: int
) -> Any:
    """The stage whose W of a rank is due first, or -1."""
    S, M = sizes[1], sizes[2]
    best, best_key = -1, NEVER
    for place in range(layout[2 * S + rank + 1] - 1, layout[2 * S + rank] - 1, -1):
        s = layout[S + place]
        k = counts[2 * S + s]
        if k < counts[S + s]:
            key = base[(S + s) * M + k] * rules[3] + shift[S + s]
            if key < best_key:
                best, best_key = s, key
    return best


def wake(tree: Any, state: Any, num_ranks: int, rank: int, time: float) -> None:
    """Let a rank look again at a time. ``tree`` is a tournament for the earliest: its winner is at
    1, and what plays for place i at 2 i and 2 i + 1."""
    state[rank] = time
    place = (num_ranks + rank) // 2
    while place > 0:
        left, right = tree[2 * place], tree[2 * place + 1]
        winner = right if state[right] < state[left] else left
        if winner == tree[place] and winner != rank:
            return
        tree[place] = winner
        place //= 2


def follow(
    sizes: Any,
    layout: Any,
    times: Any,
    ready: Any,
    ends: Any,
    counts: Any,
    state: Any,
    tree: Any,
    kind: int,
    stage: int,
    end: float,
) -> None:
    """After an F or I that ends then: the stage's next one is the head, and what waits for this one
    can run, if it is a head."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    row = kind * S + stage
    k = counts[row] - 1
    if k + 1 == M:
        ready[row] = NEVER
    elif row == 0:
        ready[row] = 0.0
    elif row == 2 * S - 1:
        ready[row] = ends[stage * M + k + 1]
    else:
        before = stage - 1 if kind == 0 else stage + 1
        hop = times[3 * S + before] if kind == 0 else times[4 * S + stage]
        ready[row] = ends[(kind * S + before) * M + k + 1] + hop
    if row == S - 1:
        if counts[2 * S - 1] == k:
            ready[2 * S - 1] = end
        return
    other = stage + 1 if kind == 0 else stage - 1
    if other < 0 or counts[kind * S + other] != k:
        return
    arrival = end + (times[3 * S + stage] if kind == 0 else times[4 * S + other])
    ready[kind * S + other] = arrival
    q = layout[other]
    if q != layout[stage] and arrival < state[q]:
        wake(tree, state, P, q, max(arrival, state[P + q]))


def begin(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    ready: Any,
    ends: Any,
    counts: Any,
    state: Any,
    tree: Any,
    order: Any,
    kind: int,
    stage: int,
    now: float,
) -> Any:
    """Run an action, and tell the rank that waits for it. Gives its end."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    rank, row = layout[stage], kind * S + stage
    end, k = now + times[row], counts[row]
    counts[row] = k + 1
    order[3 * M * layout[2 * S + rank] + counts[3 * S + rank]] = row * M + k
    counts[3 * S + rank] += 1
    wake(tree, state, P, rank, end)
    state[P + rank] = end
    if kind == 0:
        state[2 * P + rank] += memory[stage]
    elif kind == 1:
        state[2 * P + rank] += memory[S + stage] - memory[stage]
    else:
        state[2 * P + rank] -= memory[S + stage]
        return end
    ends[row * M + k] = end
    follow(sizes, layout, times, ready, ends, counts, state, tree, kind, stage, end)
    return end


def reset(sizes: Any, ready: Any, ends: Any, counts: Any, state: Any, tree: Any) -> None:
    """Nothing is done yet."""
    P, S, M = sizes[0], sizes[1], sizes[2]
    for i in range(2 * S):
        ready[i] = NEVER
    ready[0] = 0.0
    for i in range(2 * S * M):
        ends[i] = NEVER
    for i in range(3 * S + P):
        counts[i] = 0
    for rank in range(P):
        state[rank] = 0.0  # when it looks again
        state[P + rank] = 0.0  # busy until
        state[2 * P + rank] = 0.0  # what it holds
        state[3 * P + rank] = -1.0  # its first start
        tree[P + rank] = rank
    for place in range(P - 1, 0, -1):
        tree[place] = tree[2 * place]


def dispatch(
    sizes: Any,
    layout: Any,
    times: Any,
    memory: Any,
    base: Any,
    shift: Any,
    rules: Any,
    ready: Any,
    ends: Any,
    counts: Any,
    state: Any,
    tree: Any,
    order: Any,
) -> Any:
    """The makespan, or the span, of the order that these due dates give; ``NEVER`` if it gets
    stuck. See ``Dispatcher`` for the arguments."""
    P, S = sizes[0], sizes[1]
    reset(sizes, ready, ends, counts, state, tree)
    left, result = 3 * S * sizes[2], 0.0
    while left > 0:
        rank = tree[1]
        now = state[rank]
        if now >= NEVER:
            return NEVER
        kind, stage, key, coming, coming_key, full = look(
            sizes, layout, times, memory, base, shift, rules, ready, counts, state, rank, now
        )
        if kind >= 0:
            patience = rules[0] * times[kind * S + stage]
            waits = coming_key < key - _SMALL and coming - now < patience
        else:
            kind, stage = 2, weight(sizes, layout, base, shift, rules, counts, rank)
            gap = rules[1] * times[2 * S + stage] - _SMALL
            waits = stage < 0 or not (full or coming - now >= gap)
        if waits:
            wake(tree, state, P, rank, coming)
            continue
        if state[3 * P + rank] < 0:
            state[3 * P + rank] = now
        end = begin(
            sizes, layout, times, memory, ready, ends, counts, state, tree, order, kind, stage, now
        )
        left -= 1
        result = max(result, end - state[3 * P + rank] if sizes[3] else end)
    return result


FUNCTIONS = (look, weight, wake, follow, begin, reset, dispatch)
"""In the order in which they use each other."""
