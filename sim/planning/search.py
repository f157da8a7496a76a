"""The smallest count that meets, by doubling and bisection.

More replicas never make a fleet slower by more than noise, so verdicts are in order: first those that do not
meet, then those that do. Doubling finds a count that meets, bisection the smallest one, at about
2 log2 of the answer looks. Below it the neighbour has been judged, too: it is why the answer is not smaller.
"""

from __future__ import annotations

from collections.abc import Callable


def smallest(meets: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest count from 1 to `most` that meets, None if `most` does not; starts looking at `guess`.

    `meets` is asked once a count; answer - 1 has always been asked, if there is one.

    >>> smallest(lambda k: k >= 11, guess=4, most=100), smallest(lambda k: False, 4, 9)
    (11, None)
    """
    asked: dict[int, bool] = {}

    def ask(count: int) -> bool:
        if count not in asked:
            asked[count] = meets(count)
        return asked[count]

    low, high = 0, min(max(guess, 1), most)
    while not ask(high):
        if high == most:
            return None
        low, high = high, min(max(high + 1, high * 3 // 2 if high > 4 else high + 2), most)
    step = 1
    while high - low > 1 and low == 0:  # the guess met: walk down before bisecting
        lower = max(high - step, 1)
        if ask(lower):
            high, step = lower, step * 2
            if lower == 1:
                return 1
        else:
            low = lower
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ask(middle) else (middle, high)
    return high


def largest(meets: Callable[[int], bool], guess: int, most: int) -> int:
    """The largest count from 1 to `most` that meets, where small ones do; 0 if not even 1 does.

    >>> largest(lambda n: n <= 37, guess=10, most=1000), largest(lambda n: False, 10, 1000)
    (37, 0)
    """
    over = smallest(lambda count: not meets(count), guess, most)
    return most if over is None else over - 1
