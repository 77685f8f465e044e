"""The finite problems that `bigtrain.envs` makes."""
