"""Checks of the options that environments share."""

from bigtrain.errors import CMDPError


def check_probability(name: str, value: float) -> None:
    """Raises unless `value` is a probability."""
    if not 0 <= value <= 1:
        raise CMDPError(f"`{name}` must be from 0 to 1, got {value}.")
