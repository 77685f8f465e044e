"""Demonstrations from and to Minari datasets. Needs the extra `minari`.

Minari has no place for a context that only the expert saw: it goes into `infos` as `context`,
the same number at every step. Rewards are zeros, for there are none to write down.
"""

import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bigtrain.data.arrays import is_state_indices
from bigtrain.data.trajectory import Trajectory
from bigtrain.errors import DemonstrationError

if TYPE_CHECKING:
    from gymnasium import Space
    from minari import MinariDataset
else:  # names for the annotations where the extra is not installed
    MinariDataset = Space = Any

CONTEXT_KEY = "context"
_METADATA_KEY = "bigtrain"
_DATASET_ID = re.compile(r"([-_\w][-_\w/]*[-_\w]/)?[-_\w]+-v\d+")


class _Episode(NamedTuple):
    observations: Any
    actions: np.ndarray
    context: np.ndarray | None


def read(
    dataset: str | os.PathLike | MinariDataset,
    observation_key: str | None,
    context_key: str | None,
) -> dict[str, Any]:
    """The fields of `Demonstrations`, from a dataset, its id or its folder."""
    _require_packages()
    from gymnasium import spaces

    opened = _open(dataset)
    if not isinstance(opened.action_space, spaces.Discrete):
        raise DemonstrationError(
            f"The actions of `{opened.id}` must be `Discrete`, got {opened.action_space}. Number "
            "the actions that the agent may choose from, and write the dataset anew."
        )
    if opened.total_episodes == 0:
        raise DemonstrationError(f"`{opened.id}` must hold at least one episode, got none.")
    space = _pick_space(opened, observation_key)
    try:
        episodes = list(_read_episodes(opened, space, observation_key, context_key))
        observations = [_as_numbers(space, episode.observations) for episode in episodes]
    except (AssertionError, IndexError, KeyError, OSError, TypeError) as error:
        raise DemonstrationError(
            f"`{opened.id}` must be a whole Minari dataset, but reading it failed: {error}."
        ) from error
    for index, (seen, episode) in enumerate(zip(observations, episodes, strict=True)):
        if len(seen) != len(episode.actions) + 1:
            raise DemonstrationError(
                f"Episode {index} of `{opened.id}` must have one observation more than actions, "
                f"got {len(seen)} observations and {len(episode.actions)} actions."
            )
    return {
        "observations": np.concatenate(observations),
        "actions": np.concatenate([episode.actions for episode in episodes])
        - opened.action_space.start,
        "lengths": np.array([len(episode.actions) for episode in episodes]),
        "contexts": _read_contexts(opened, [episode.context for episode in episodes], context_key),
        "metadata": _read_metadata(opened),
    }


def write(
    dataset_id: str,
    trajectories: Sequence[Trajectory],
    *,
    metadata: Mapping[str, Any],
    num_states: int | None,
    num_actions: int,
    details: Mapping[str, Any],
) -> MinariDataset:
    """Writes a local dataset without an environment, losslessly."""
    _require_packages()
    import minari
    from gymnasium import spaces

    if not _DATASET_ID.fullmatch(dataset_id):
        raise DemonstrationError(
            "`dataset_id` must be a name, a version and perhaps a namespace of two letters or "
            f"more, as in `tiger/expert-v0`, got {dataset_id!r}."
        )
    with warnings.catch_warnings():  # Minari asks for every detail that was left out
        warnings.filterwarnings("ignore", ".*(is set to None|env_spec is None)", UserWarning)
        try:
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                [_as_buffer(trajectory) for trajectory in trajectories],
                observation_space=_make_space(trajectories[0].observations, num_states),
                action_space=spaces.Discrete(num_actions),
                data_format="hdf5",
                jpeg_encoding=False,  # JPEG would change pictures, and states be lost
                **details,
            )
        except ValueError as error:
            raise DemonstrationError(f"Minari refused `{dataset_id}`: {error}") from error
    dataset.storage.update_metadata({_METADATA_KEY: dict(metadata)})
    return dataset


def _require_packages() -> None:
    needed = ("minari", "h5py", "PIL")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise DemonstrationError(
            f"Minari datasets need {', '.join(missing)}, which must be installed first: "
            "pip install 'big-imitation[minari]'."
        )


def _open(given: str | os.PathLike | MinariDataset) -> MinariDataset:
    import minari

    if isinstance(given, minari.MinariDataset):
        return given
    folders = (Path(given) / "data", Path(given))
    try:
        for folder in folders:
            if (folder / "metadata.json").is_file():
                return minari.MinariDataset(folder)
        if isinstance(given, str):
            return minari.load_dataset(given)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise DemonstrationError(
            f"`{given}` must be a Minari dataset that minari {minari.__version__} can open: "
            f"{error}."
        ) from error
    raise FileNotFoundError(f"There is no Minari dataset in the folder `{given}`.")


def _pick_space(dataset: MinariDataset, observation_key: str | None) -> Space:
    from gymnasium import spaces

    space = dataset.observation_space
    if observation_key is None:
        return space
    keys = list(space.spaces) if isinstance(space, spaces.Dict) else []
    if observation_key not in keys:
        raise DemonstrationError(
            f"`observation_key` must be an entry of the observations of `{dataset.id}` "
            f"({', '.join(keys) or 'which are no dictionary'}), got {observation_key!r}."
        )
    return space[observation_key]


def _read_episodes(
    dataset: MinariDataset, space: Space, observation_key: str | None, context_key: str | None
) -> Iterator[_Episode]:
    """Episodes straight from the HDF5 file where that can be done, else as Minari gives them.

    Straight is five times as fast: Minari reads six arrays an episode, we need two or three.
    """
    import h5py

    if dataset.storage.FORMAT == "hdf5":
        names = ["observations" if observation_key is None else f"observations/{observation_key}"]
        names.append("actions")
        with h5py.File(Path(dataset.storage.data_path) / "main_data.hdf5") as file:
            first = f"episode_{dataset.episode_indices[0]}"
            if _is_plain(file[f"{first}/{names[0]}"], space):
                if context_key is not None and f"{first}/infos/{context_key}" in file:
                    names.append(f"infos/{context_key}")
                for index in dataset.episode_indices:
                    arrays = [_read_array(file, f"episode_{index}/{name}") for name in names]
                    yield _Episode(arrays[0], arrays[1], arrays[2] if arrays[2:] else None)
                return
    for episode in dataset.iterate_episodes():
        observations = episode.observations
        if observation_key is not None:
            observations = observations[observation_key]
        context = (episode.infos or {}).get(context_key)
        yield _Episode(observations, np.asarray(episode.actions), context)


def _is_plain(stored: Any, space: Space) -> bool:
    """Whether an HDF5 dataset holds the numbers themselves, not JPEGs, text or a group."""
    dtype, shape = getattr(stored, "dtype", None), getattr(stored, "shape", ())
    return dtype is not None and dtype.kind in "biuf" and shape[1:] == space.shape


def _read_array(file: Any, name: str) -> np.ndarray:
    """One array by h5py's low-level calls, which take half the time of the others."""
    import h5py

    stored = h5py.h5d.open(file.id, name.encode())
    if stored.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` holds {stored.dtype}, not numbers")
    values = np.empty(stored.shape, stored.dtype)
    stored.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _as_numbers(space: Space, values: Any) -> np.ndarray:
    """An episode's observations as one array: dictionaries and tuples become vectors."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return values - space.start
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return values
    return _flatten(space, values)


def _flatten(space: Space, values: Any) -> np.ndarray:
    """`gymnasium.spaces.flatten` of all steps at once."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [_flatten(part, values[key]) for key, part in space.spaces.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, values, strict=True)
        return np.concatenate([_flatten(part, value) for part, value in pairs], axis=1)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return np.reshape(values, (len(values), -1))
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=space.dtype)[values - space.start]
    if isinstance(space, spaces.MultiDiscrete):
        digits = np.reshape(values - space.start, (len(values), -1)).T
        sizes = space.nvec.reshape(-1)
        one_hots = [
            np.eye(n, dtype=space.dtype)[digit] for n, digit in zip(sizes, digits, strict=True)
        ]
        return np.concatenate(one_hots, axis=1)
    raise DemonstrationError(
        f"Observations must be numbers, or dictionaries and tuples of them, got {space}. Pick an "
        "entry by `observation_key`, or encode them as numbers first."
    )


def _read_contexts(
    dataset: MinariDataset, given: Sequence[Any], context_key: str | None
) -> np.ndarray | None:
    """One context an episode, or None where the first episode has none."""
    if given[0] is None:
        return None
    contexts = []
    for index, values in enumerate(given):
        values = np.asarray([] if values is None else values)
        if values.dtype.kind not in "iu" or values.size == 0 or np.ptp(values) != 0:
            raise DemonstrationError(
                f"`infos` of `{dataset.id}` must have one integer for the whole episode under "
                f"{context_key!r}, the context, but those of episode {index} have not. Pass "
                "`context_key=None` to leave contexts unknown."
            )
        contexts.append(values.flat[0])
    return np.array(contexts)


def _read_metadata(dataset: MinariDataset) -> dict[str, Any]:
    found = {"minari_id": dataset.id}
    if dataset.env_spec is not None:
        found["environment"] = dataset.env_spec.id
    stored = dataset.storage.metadata.get(_METADATA_KEY)
    return {**(stored if isinstance(stored, dict) else {}), **found}


def _as_buffer(trajectory: Trajectory) -> Any:
    from minari.data_collector import EpisodeBuffer

    steps = len(trajectory)
    observations = trajectory.observations
    if is_state_indices(observations):
        observations = observations.astype(np.int64)  # what `Discrete` holds
    infos = {CONTEXT_KEY: np.full(steps + 1, trajectory.context)}
    fields: dict[str, Any] = {
        "observations": observations,
        "actions": trajectory.actions.astype(np.int64),
        "rewards": np.zeros(steps),
        "terminations": np.zeros(steps, bool),  # no episode ends, it is only cut off
        "truncations": np.arange(steps) == steps - 1,
        "infos": None if trajectory.context is None else infos,
    }
    return EpisodeBuffer(**fields)


def _make_space(observations: np.ndarray, num_states: int | None) -> Space:
    from gymnasium import spaces

    shape, dtype = observations.shape[1:], observations.dtype
    if num_states is not None:
        return spaces.Discrete(num_states)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)
