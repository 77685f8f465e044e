"""Finite problems: all that knows tables."""
