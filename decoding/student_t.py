"""Quantiles of Student's t distribution, for intervals from few samples.

All intervals of this project are two-sided 90 % intervals: plus and minus `t_quantile(n - 1)` standard errors of the
mean of n samples.
"""

from typing import Final

_NORMAL: Final = 1.6448536
"""95th percentile of the normal distribution, the limit of many degrees of freedom."""
_TABLE: Final = (
    6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125,
    1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247,
    1.7207, 1.7171, 1.7139, 1.7109, 1.7081, 1.7056, 1.7033, 1.7011, 1.6991, 1.6973,
)  # fmt: skip


def t_quantile(degrees_of_freedom: int) -> float:
    """Return the 95th percentile of Student's t to four digits; 90 % of it lie between minus and plus this value.

    Up to 30 degrees of freedom it is tabulated; above, two terms of the expansion in their inverse are used (Abramowitz
    and Stegun 26.7.5). Raises `ValueError` below one degree of freedom: a single sample does not show its error.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"{degrees_of_freedom} degrees of freedom: an error needs two samples or more")
    if degrees_of_freedom <= len(_TABLE):
        return _TABLE[degrees_of_freedom - 1]
    first = (_NORMAL**3 + _NORMAL) / 4
    second = (5 * _NORMAL**5 + 16 * _NORMAL**3 + 3 * _NORMAL) / 96
    return _NORMAL + first / degrees_of_freedom + second / degrees_of_freedom**2
