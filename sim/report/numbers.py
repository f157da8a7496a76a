"""How a number is written: at most the digits that its interval supports, `-` where it is not known.

>>> seconds(Estimate(5.234, 4.3, 6.3, 100)), seconds(Estimate(17.2, 15, 19, 100))
('5.2 s', '17 s')
>>> interval(Estimate(5.234, 4.3, 6.3, 100)), milliseconds(Estimate(0.01234, None, None, 9))
('4.3 to 6.3 s', '12 ms')
>>> percent(Estimate(0.4137, 0.39, 0.44, 50)), count(12345.6), dollars(0.4671)
('41%', '12,300', '0.467')
"""

from __future__ import annotations

import math

from replicast.sim.planning.quantiles import Estimate, digits

UNKNOWN = "-"


def fixed(value: float, places: int) -> str:
    """`value` with `places` decimals; negative places round to tens and hundreds.

    >>> fixed(1234.5, -2), fixed(0.5, 2)
    ('1,200', '0.50')
    """
    return f"{round(value, places):,.{max(places, 0)}f}"


def significant(value: float, kept: int = 3) -> str:
    """`value` with `kept` significant digits, trailing zeros kept.

    >>> significant(0.4671), significant(12345.6), significant(0.0)
    ('0.467', '12,300', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else UNKNOWN
    return fixed(value, kept - 1 - math.floor(math.log10(abs(value))))


def seconds(estimate: Estimate) -> str:
    """A time in seconds."""
    return _number(estimate, 1, " s")


def milliseconds(estimate: Estimate) -> str:
    """A time in milliseconds."""
    return _number(estimate, 1000, " ms")


def percent(estimate: Estimate) -> str:
    """A share in whole percent, with a decimal where the interval supports it."""
    if estimate.value is None:
        return UNKNOWN
    places = min(max(digits(_scaled(estimate, 100)), 0), 1)
    return f"{fixed(100 * estimate.value, places)}%"


def share(value: float) -> str:
    """An exact share in whole percent."""
    return f"{100 * value:.0f}%"


def interval(estimate: Estimate) -> str:
    """`low to high`, as many decimals as the value has."""
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    places = _places(estimate)
    return f"{fixed(estimate.low, places)} to {fixed(estimate.high, places)} s"


def ratio(estimate: Estimate) -> str:
    """`133:1`."""
    return UNKNOWN if estimate.value is None else f"{significant(estimate.value)}:1"


def rate(estimate: Estimate) -> str:
    """A rate with three significant digits."""
    return UNKNOWN if estimate.value is None else significant(estimate.value)


def count(value: float) -> str:
    """A large figure with three significant digits."""
    return significant(value)


def dollars(value: float | None) -> str:
    """US dollars with three significant digits."""
    return UNKNOWN if value is None else significant(value)


def _places(estimate: Estimate) -> int:
    """Decimals of a time in its unit: what the interval supports, within one to three significant digits."""
    value = abs(estimate.value or 0.0)
    if not value:
        return 0
    first = -math.floor(math.log10(value))
    return max(first, min(digits(estimate), first + 2))


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    def by(x: float | None) -> float | None:
        return None if x is None else x * factor

    return Estimate(by(estimate.value), by(estimate.low), by(estimate.high), estimate.n)


def _number(estimate: Estimate, factor: float, unit: str) -> str:
    if estimate.value is None:
        return UNKNOWN
    scaled = _scaled(estimate, factor)
    assert scaled.value is not None, "scaling keeps a value"
    return fixed(scaled.value, _places(scaled)) + unit
