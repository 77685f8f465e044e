"""Every environment against its definition, written down again here in another form."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import dense, kaelbling_tiger

from bigtrain import envs
from bigtrain.errors import BigTrainError, CMDPError
from bigtrain.finite.cmdp import TabularCMDP, Task

DEFAULT_MAP = ["#####", "#...#", "L.S.R", "#.x.#", "#####"]
WALLED_MAP = ["########", "#..#...#", "L.S#.#.R", "#..x.#.#", "########"]
OPEN_MAP = ["Lx..", "#.S.", "...R"]  # floor up to the edge, doors that are entered by going up
MAPS = {"default": DEFAULT_MAP, "walled": WALLED_MAP, "open": OPEN_MAP}

Rows = dict[tuple[str, str, str], dict[str, float]]
"""(context, state, action) → {next state: probability}, all by name."""


def tiger_treasure(p_hear: float = 0.85) -> Rows:
    choices = {
        ("tiger-1", "open-1"): {"Tiger": 1.0},
        ("tiger-1", "open-2"): {"Gold": 1.0},
        ("tiger-2", "open-1"): {"Gold": 1.0},
        ("tiger-2", "open-2"): {"Tiger": 1.0},
        ("tiger-1", "listen"): {"T1": p_hear, "T2": 1 - p_hear},
        ("tiger-2", "listen"): {"T1": 1 - p_hear, "T2": p_hear},
    }
    rows = {}
    for (context, action), follows in choices.items():
        rows |= {(context, state, action): follows for state in ("S0", "T1", "T2")}
        rows |= {(context, state, action): {"ST": 1.0} for state in ("Tiger", "Gold", "ST")}
    return rows


def arrows(text: str) -> Rows:
    """Rows from lines like `context-0: s0 left s1`; `*` stands for every context or action."""
    rows = {}
    for line in text.strip().splitlines():
        context, state, action, follows = line.replace(":", "").split()
        contexts = ["context-0", "context-1"] if context == "*" else [context]
        actions = text_actions(text) if action == "*" else [action]
        rows |= {(c, state, a): {follows: 1.0} for c in contexts for a in actions}
    return rows


def text_actions(text: str) -> list[str]:
    return sorted({line.split()[2] for line in text.strip().splitlines()} - {"*"})


DETOUR = arrows("""
    *: s0 left s1
    *: s0 right s2
    context-0: s1 * s0
    context-1: s1 * s3
    *: s2 * s3
    context-0: s3 * s4
    context-1: s3 * s5
    *: s4 * s0
    *: s5 * s0
""")
CROSSROADS = arrows("""
    *: s0 left s1
    *: s0 right s2
    context-0: s1 * s3
    context-1: s1 * s0
    *: s2 * s3
    *: s3 * s3
""")
THREE_STATE = arrows("""
    context-0: s0 a1 s1
    context-0: s0 a2 s2
    context-1: s0 a1 s2
    context-1: s0 a2 s1
    *: s1 * s1
    *: s2 * s2
""")


def tiger_maze(drawing: list[str] = DEFAULT_MAP, p_hear: float = 1.0) -> Rows:
    """A walk in one long string: a step is an offset, and line ends are as good as walls."""
    line = "\n".join(drawing)
    stride = len(drawing[0]) + 1
    offsets = {"up": -stride, "down": stride, "left": -1, "right": 1}
    name_at = {at: f"({at // stride},{at % stride})" for at, c in enumerate(line) if c in ".Sx"}
    doors = {
        ("gold-left", "L"): "Gold",
        ("gold-left", "R"): "Tiger",
        ("gold-right", "L"): "Tiger",
        ("gold-right", "R"): "Gold",
    }
    rows = {}
    for context, wrong in (("gold-left", "gold-right"), ("gold-right", "gold-left")):
        for end, action in itertools.product(("Gold", "Tiger"), (*offsets, "listen")):
            rows[context, end, action] = {name_at[line.index("x")]: 1.0}
        for (at, cell), heard in itertools.product(
            name_at.items(), ("", " gold-left", " gold-right")
        ):
            rows[context, cell + heard, "listen"] = {
                f"{cell} {context}": p_hear,
                f"{cell} {wrong}": 1 - p_hear,
            }
            for action, offset in offsets.items():
                to = at + offset
                found = line[to] if 0 <= to < len(line) else "#"
                follows = doors.get((context, found)) or name_at.get(to, cell)
                rows[context, cell + heard, action] = {follows: 1.0}
    return rows


DEFINITIONS = {
    "tiger-treasure": ({}, tiger_treasure()),
    "tiger-treasure, p_hear 0.7": ({"p_hear": 0.7}, tiger_treasure(0.7)),
    "tiger-treasure, p_hear 1": ({"p_hear": 1.0}, tiger_treasure(1.0)),
    "tiger-treasure, p_hear 0": ({"p_hear": 0.0}, tiger_treasure(0.0)),
    "detour": ({}, DETOUR),
    "crossroads": ({}, CROSSROADS),
    "three-state": ({}, THREE_STATE),
    "tiger-maze": ({}, tiger_maze()),
    "tiger-maze, pixels": ({"observation": "pixels"}, tiger_maze()),
} | {
    f"tiger-maze, {map_name}, p_hear {p_hear}": (
        {"map": drawing, "p_hear": p_hear},
        tiger_maze(drawing, p_hear),
    )
    for map_name, drawing in MAPS.items()
    for p_hear in (1.0, 0.85)
}


def table_of(rows: Rows, cmdp: TabularCMDP) -> np.ndarray:
    """The definition as an array in the order of the names that `cmdp` gives."""
    names = (cmdp.context_names, cmdp.state_names, cmdp.action_names)
    assert set(rows) == set(itertools.product(*names))
    return np.array(
        [
            [
                [
                    [rows[context, state, action].get(follows, 0.0) for follows in names[1]]
                    for action in names[2]
                ]
                for state in names[1]
            ]
            for context in names[0]
        ]
    )


def task_of(cmdp: TabularCMDP) -> Task:
    assert cmdp.task is not None
    return cmdp.task


def named(cmdp: TabularCMDP, states: tuple[int, ...]) -> set[str]:
    assert len(set(states)) == len(states)
    return {cmdp.state_names[state] for state in states}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_every_transition_is_as_defined(case):
    options, rows = DEFINITIONS[case]
    cmdp = envs.make(case.split(",")[0], **options)
    # Nothing is computed but 1 − p, so float64 rounding is all there is.
    np.testing.assert_allclose(dense(cmdp), table_of(rows, cmdp), rtol=0, atol=1e-15)


class TestWhatBelongsToAProblem:
    @pytest.mark.parametrize(
        ("name", "rewards", "reward_range", "exploring", "goals", "failures"),
        [
            (
                "tiger-treasure",
                {"Gold": 10, "Tiger": -100, "T1": -1, "T2": -1},
                (-100, 10),
                {"T1", "T2"},
                {"Gold"},
                {"Tiger"},
            ),
            ("detour", {"s2": -1, "s3": 2}, (-1, 2), set(), set(), set()),
            ("crossroads", {"s2": -1, "s3": 2}, (-1, 2), set(), {"s3"}, set()),
            ("three-state", {"s1": 1, "s2": -1}, (-1, 1), set(), {"s1"}, {"s2"}),
            (
                "tiger-maze",
                {"Gold": 1, "Tiger": -0.05},
                (-0.05, 1),
                {
                    f"({row},{column}) gold-{side}"
                    for row in (1, 2, 3)
                    for column in (1, 2, 3)
                    for side in ("left", "right")
                },
                {"Gold"},
                {"Tiger"},
            ),
        ],
    )
    def test_task(self, name, rewards, reward_range, exploring, goals, failures):
        cmdp = envs.make(name)
        task = task_of(cmdp)
        want = np.array(
            [[rewards.get(state, 0.0)] * cmdp.num_actions for state in cmdp.state_names]
        )
        np.testing.assert_array_equal(task.reward, want)
        assert task.reward_range == reward_range == (want.min(), want.max())
        assert named(cmdp, task.exploration_states) == exploring
        assert named(cmdp, task.goal_states) == goals
        assert named(cmdp, task.failure_states) == failures

    @pytest.mark.parametrize(
        ("name", "states", "actions", "contexts", "start", "prior"),
        [
            (
                "tiger-treasure",
                ["S0", "T1", "T2", "Tiger", "Gold", "ST"],
                ["open-1", "open-2", "listen"],
                ["tiger-1", "tiger-2"],
                "S0",
                [0.5, 0.5],
            ),
            (
                "detour",
                ["s0", "s1", "s2", "s3", "s4", "s5"],
                ["left", "right"],
                ["context-0", "context-1"],
                "s0",
                [0.9, 0.1],
            ),
            (
                "crossroads",
                ["s0", "s1", "s2", "s3"],
                ["left", "right"],
                ["context-0", "context-1"],
                "s0",
                [0.5, 0.5],
            ),
            (
                "three-state",
                ["s0", "s1", "s2"],
                ["a1", "a2"],
                ["context-0", "context-1"],
                "s0",
                [0.5, 0.5],
            ),
            (
                "tiger-maze",
                [
                    f"({row},{column}){heard}"
                    for row in (1, 2, 3)
                    for column in (1, 2, 3)
                    for heard in ("", " gold-left", " gold-right")
                ]
                + ["Gold", "Tiger"],
                ["up", "down", "left", "right", "listen"],
                ["gold-left", "gold-right"],
                "(2,2)",
                [0.5, 0.5],
            ),
        ],
    )
    def test_names_start_prior_and_discount(self, name, states, actions, contexts, start, prior):
        cmdp = envs.make(name)
        assert list(cmdp.state_names) == states
        assert list(cmdp.action_names) == actions
        assert list(cmdp.context_names) == contexts
        assert (cmdp.num_contexts, cmdp.num_states, cmdp.num_actions) == (
            len(contexts),
            len(states),
            len(actions),
        )
        np.testing.assert_array_equal(cmdp.initial, [state == start for state in states])
        np.testing.assert_array_equal(cmdp.context_prior, prior)
        assert cmdp.gamma == 0.99

    def test_the_default_maze_has_29_states(self):
        assert envs.make("tiger-maze").num_states == 29

    @pytest.mark.parametrize("map_name", MAPS)
    def test_a_maze_starts_at_s_and_explores_wherever_something_was_heard(self, map_name):
        cmdp = envs.make("tiger-maze", map=MAPS[map_name])
        ((row, column),) = [
            (row, line.index("S")) for row, line in enumerate(MAPS[map_name]) if "S" in line
        ]
        assert named(cmdp, tuple(np.flatnonzero(cmdp.initial).tolist())) == {f"({row},{column})"}
        heard = {state for state in cmdp.state_names if "gold-" in state}
        assert named(cmdp, task_of(cmdp).exploration_states) == heard
        num_floor = sum(line.count(mark) for line in MAPS[map_name] for mark in ".Sx")
        assert (len(heard), cmdp.num_states) == (2 * num_floor, 3 * num_floor + 2)

    def test_features_are_a_one_hot_of_the_state_everywhere(self):
        for name in envs.names():
            if name == "lighthouse":  # whose features are kinds of places
                continue
            cmdp = envs.make(name)
            for action in range(cmdp.num_actions):
                got = jax.vmap(cmdp.features, (0, None))(
                    jnp.arange(cmdp.num_states), jnp.int32(action)
                )
                np.testing.assert_array_equal(got, np.eye(cmdp.num_states))

    def test_the_paper_s_inequalities_hold_at_the_crossroads(self):
        cmdp = envs.make("crossroads")
        r = task_of(cmdp).reward[:, 0]
        assert r[1] > r[2]
        assert r[2] + cmdp.gamma * r[3] > r[1] + cmdp.gamma * r[0]
        assert r[0] < r[3]

    def test_kaelbling_s_tiger_has_the_dynamics_of_tiger_treasure(self):
        cmdp, ours = kaelbling_tiger()[0], envs.make("tiger-treasure")
        np.testing.assert_allclose(dense(cmdp), dense(ours), rtol=0, atol=1e-15)
        assert cmdp.state_names == ours.state_names
        assert cmdp.action_names == ours.action_names
        assert cmdp.context_names == ours.context_names


class TestOptions:
    def test_names(self):
        paper = ["tiger-treasure", "detour", "tiger-maze", "three-state", "crossroads"]
        assert list(envs.names()) == [*paper, "poisoned-doors", "lighthouse"]

    def test_options_and_their_defaults(self):
        assert envs.options("tiger-treasure") == {"p_hear": 0.85, "prior": (0.5, 0.5)}
        assert envs.options("detour") == {"prior": (0.9, 0.1)}
        assert envs.options("crossroads") == {"prior": (0.5, 0.5)}
        assert envs.options("three-state") == {"prior": (0.5, 0.5)}
        maze = envs.options("tiger-maze")
        assert list(maze.pop("map")) == DEFAULT_MAP
        assert maze == {"p_hear": 1.0, "observation": "symbolic", "prior": (0.5, 0.5)}

    @pytest.mark.parametrize("name", [n for n in envs.names() if "prior" in envs.options(n)])
    def test_prior(self, name):
        np.testing.assert_array_equal(
            envs.make(name, prior=[0.25, 0.75]).context_prior, [0.25, 0.75]
        )

    @pytest.mark.parametrize("text", ["\n".join(WALLED_MAP), "\n" + "\n".join(WALLED_MAP) + "\n"])
    def test_a_map_may_be_one_string(self, text):
        from_text, from_rows = (envs.make("tiger-maze", map=m) for m in (text, WALLED_MAP))
        assert from_text.state_names == from_rows.state_names
        np.testing.assert_array_equal(dense(from_text), dense(from_rows))
        np.testing.assert_array_equal(from_text.initial, from_rows.initial)
        np.testing.assert_array_equal(from_text.observation_array(), from_rows.observation_array())

    @pytest.mark.parametrize("map_name", MAPS)
    def test_symbols_are_one_hots_of_row_column_and_indicator(self, map_name):
        drawing = MAPS[map_name]
        cmdp = envs.make("tiger-maze", map=drawing)
        height, width = len(drawing), len(drawing[0])
        want = np.zeros((cmdp.num_states, height + width + 3 + 2))
        for state, name in enumerate(cmdp.state_names[:-2]):
            place, _, heard = name.partition(" ")
            row, column = (int(number) for number in place.strip("()").split(","))
            want[state, row] = 1
            want[state, height + column] = 1
            want[state, height + width + ["", "gold-left", "gold-right"].index(heard)] = 1
        want[-2, -2] = want[-1, -1] = 1
        np.testing.assert_array_equal(cmdp.observation_array(), want)


@pytest.fixture(scope="module", params=["walled", "open"])  # not square: rows are not columns
def maze(request) -> tuple[list[str], TabularCMDP, np.ndarray]:
    """A map, the maze drawn from it, and what each of its states looks like."""
    cmdp = envs.make("tiger-maze", map=MAPS[request.param], observation="pixels")
    return MAPS[request.param], cmdp, cmdp.observation_array()


class TestPixels:
    def test_a_picture_is_a_map_of_square_cells_channels_last(self, maze):
        drawing, cmdp, pictures = maze
        assert pictures.dtype == np.uint8
        num_pictures, height, width, channels = pictures.shape
        assert (num_pictures, channels) == (cmdp.num_states, 3)
        scale = height // len(drawing)
        assert (height, width) == (scale * len(drawing), scale * len(drawing[0]))

    def test_all_states_look_different(self, maze):
        _, cmdp, pictures = maze
        assert len(np.unique(pictures.reshape(cmdp.num_states, -1), axis=0)) == cmdp.num_states

    def test_drawing_one_by_one_compiled_or_batched_is_the_same(self, maze):
        _, cmdp, pictures = maze
        states = jnp.arange(cmdp.num_states)
        jitted = jax.jit(lambda cmdp, state: cmdp.observe(state))
        for state in (0, 1, 5, cmdp.num_states - 2, cmdp.num_states - 1):
            np.testing.assert_array_equal(cmdp.observe(states[state]), pictures[state])
            np.testing.assert_array_equal(jitted(cmdp, states[state]), pictures[state])
        batched = jax.vmap(cmdp.observe)(states)
        assert batched.dtype == jnp.uint8
        np.testing.assert_array_equal(batched, pictures)

    def test_the_picture_changes_exactly_where_the_agent_is(self, maze):
        drawing, cmdp, pictures = maze
        scale = pictures.shape[1] // len(drawing)
        silent = pictures[:-2:3]
        background = np.median(silent, axis=0)  # each pixel differs in one picture at most
        for state in range(0, cmdp.num_states - 2, 3):
            row, column = (int(n) for n in cmdp.state_names[state].strip("()").split(","))
            cell = np.zeros(pictures.shape[1:3], bool)
            cell[row * scale : (row + 1) * scale, column * scale : (column + 1) * scale] = True
            changed = (pictures[state] != background).any(-1)
            np.testing.assert_array_equal(changed, cell)
            left = np.arange(pictures.shape[2]) < (column + 0.5) * scale
            for heard, half in ((1, left), (2, ~left)):
                told = (pictures[state + heard] != pictures[state]).any(-1)
                np.testing.assert_array_equal(told, cell & half)

    def test_walls_floor_and_doors_have_a_colour_each(self, maze):
        drawing, _, pictures = maze
        scale = pictures.shape[1] // len(drawing)
        background = np.median(pictures[:-2:3], axis=0)
        colours: dict[str, set] = {"#": set(), "floor": set(), "door": set()}
        for row, column in np.ndindex(len(drawing), len(drawing[0])):
            mark = drawing[row][column]
            kind = "#" if mark == "#" else "door" if mark in "LR" else "floor"
            cell = background[
                row * scale : (row + 1) * scale, column * scale : (column + 1) * scale
            ]
            colours[kind] |= {tuple(pixel) for pixel in cell.reshape(-1, 3)}
        assert [len(of_kind) for of_kind in colours.values()] == [1, 1, 1]
        assert len(set.union(*colours.values())) == 3

    def test_a_picture_tells_its_state(self, maze):
        _, cmdp, pictures = maze
        states, found = jax.jit(jax.vmap(cmdp.identify))(jnp.asarray(pictures))
        np.testing.assert_array_equal(states, np.arange(cmdp.num_states))
        assert found.all()
        spoilt = jnp.asarray(pictures[4]).at[0, 0, 0].add(1)
        assert not cmdp.identify(spoilt)[1]


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("tiger", {}, ["'tiger'", *envs.names()]),
        ("detour", {"p_hear": 0.9}, ["'detour'", "'p_hear'", "prior"]),
        ("tiger-maze", {"size": 3}, ["'size'", "p_hear", "map", "observation", "prior"]),
        ("tiger-treasure", {"p_hear": 1.5}, ["`p_hear`", "from 0 to 1", "1.5"]),
        ("tiger-treasure", {"p_hear": -0.1}, ["`p_hear`", "from 0 to 1", "-0.1"]),
        ("tiger-treasure", {"p_hear": float("nan")}, ["`p_hear`", "from 0 to 1", "nan"]),
        ("tiger-maze", {"p_hear": 2.0}, ["`p_hear`", "from 0 to 1", "2.0"]),
        ("detour", {"prior": [0.5, 0.6]}, ["prior`", "sum to one", "1.1"]),
        ("detour", {"prior": [1.5, -0.5]}, ["prior`", "not negative", "context-1", "-0.5"]),
        ("detour", {"prior": [0.5, float("nan")]}, ["prior`", "finite", "context-1", "nan"]),
        ("crossroads", {"prior": [0.2, 0.3, 0.5]}, ["prior`", "(2,)", "(3,)"]),
        ("three-state", {"prior": [1.0]}, ["prior`", "(2,)", "(1,)"]),
        ("tiger-maze", {"map": ["L.R", ".x."]}, ["`map`", "one 'S'", "start", "got 0"]),
        ("tiger-maze", {"map": ["LSR", ".xS"]}, ["`map`", "one 'S'", "start", "got 2"]),
        ("tiger-maze", {"map": ["LSR", "..."]}, ["`map`", "one 'x'", "return", "got 0"]),
        ("tiger-maze", {"map": ["LSR", "xx."]}, ["`map`", "one 'x'", "return", "got 2"]),
        ("tiger-maze", {"map": ["LSx"]}, ["`map`", "door 'R'", "none"]),
        ("tiger-maze", {"map": ["xSR"]}, ["`map`", "door 'L'", "none"]),
        ("tiger-maze", {"map": ["LSR", "x."]}, ["`map`", "one length", "[3, 2]"]),
        ("tiger-maze", {"map": "LSR\nx..\n\n...\n"}, ["`map`", "one length", "[3, 3, 0, 3]"]),
        ("tiger-maze", {"map": ["LSR", "x o"]}, ["`map`", "#.SLRx", "[' ', 'o']"]),
        ("tiger-maze", {"map": []}, ["`map`", "rows", "[]"]),
        ("tiger-maze", {"map": ""}, ["`map`", "rows", "[0]"]),
        ("tiger-maze", {"map": ["", ""]}, ["`map`", "rows", "[0, 0]"]),
        (
            "tiger-maze",
            {"observation": "sound"},
            ["`observation`", "symbolic", "pixels", "'sound'"],
        ),
    ],
)
def test_a_wrong_wish_is_refused_with_what_came_and_what_must_hold(name, options, parts):
    with pytest.raises(CMDPError) as refused:
        envs.make(name, **options)
    assert isinstance(refused.value, BigTrainError)
    for part in parts:
        assert part in str(refused.value)


def test_the_options_of_an_unknown_environment_are_refused_too():
    with pytest.raises(CMDPError, match=r"'maze'.*tiger-maze"):
        envs.options("maze")


def tolerance(p: np.ndarray, num_samples: int) -> np.ndarray:
    """How far a frequency may be from p, by Bernstein's inequality.

    P(|f − p| > √(2p(1−p)L/n) + L/3n) ≤ 2e^−L; with L = log(2m/10⁻⁶) all m comparisons hold together
    but for one chance in a million. Where p is 0 or 1 nothing may be off.
    """
    bound = np.log(2 * p.size / 1e-6)
    spread = np.sqrt(2 * p * (1 - p) * bound / num_samples) + bound / (3 * num_samples)
    return np.where((p == 0) | (p == 1), 0, spread)


SAMPLED = [
    ("tiger-treasure", {"prior": [0.3, 0.7]}),
    ("detour", {}),
    ("crossroads", {"prior": [1.0, 0.0]}),
    ("three-state", {}),
    ("tiger-maze", {"p_hear": 0.85}),
    ("tiger-maze", {"map": OPEN_MAP, "p_hear": 0.7}),
]


class TestSampling:
    @pytest.mark.parametrize(("name", "options"), SAMPLED)
    def test_steps_from_everywhere_have_the_right_frequencies(self, name, options):
        """2,000 draws from each (θ, s, a) in one compiled call: 0.85 is met to within 0.07."""
        cmdp = envs.make(name, **options)
        want = dense(cmdp)
        num_draws, num_states = 2000, cmdp.num_states

        def frequencies(key, context, state, action):
            keys = jax.random.split(key, num_draws)
            after = jax.vmap(cmdp.step, (0, None, None, None))(keys, state, action, context)
            return jnp.bincount(after, length=num_states) / num_draws

        places = jnp.array(list(np.ndindex(want.shape[:3])))
        keys = jax.random.split(jax.random.key(0), len(places))
        got = np.asarray(jax.jit(jax.vmap(frequencies))(keys, *places.T)).reshape(want.shape)
        # Counts of 2,000 divided in float32 are off by 10⁻⁷ at most.
        assert (np.abs(got - want) <= tolerance(want, num_draws) + 1e-6).all()

    @pytest.mark.parametrize(("name", "options"), SAMPLED[::4])
    def test_walks_are_where_they_should_be(self, name, options):
        """10,000 episodes of random actions against p(θ) p(s₀) Pᵗ, after every step."""
        cmdp = envs.make(name, **options)
        num_episodes, num_steps = 10_000, 12

        def walk(key):
            key_context, key_reset, key_steps = jax.random.split(key, 3)
            context = cmdp.sample_context(key_context)

            def advance(state, key):
                key_action, key_step = jax.random.split(key)
                action = jax.random.randint(key_action, (), 0, cmdp.num_actions)
                return cmdp.step(key_step, state, action, context), state

            start = cmdp.reset(key_reset, context)
            _, states = jax.lax.scan(advance, start, jax.random.split(key_steps, num_steps))
            return context, states

        keys = jax.random.split(jax.random.key(0), num_episodes)
        contexts, states = (np.asarray(part) for part in jax.jit(jax.vmap(walk))(keys))
        got = np.zeros((num_steps, cmdp.num_contexts, cmdp.num_states))
        np.add.at(got, (np.arange(num_steps), contexts[:, None], states), 1 / num_episodes)

        walked = dense(cmdp).mean(2)
        now = np.outer(cmdp.context_prior, cmdp.initial)
        want = np.zeros(got.shape)
        for step in range(num_steps):
            want[step] = now
            now = np.einsum("cs,cst->ct", now, walked)
        # Sums of 10,000 parts in float64, here and in the powers of P: far below 10⁻⁹.
        assert (np.abs(got - want) <= tolerance(want, num_episodes) + 1e-9).all()

    def test_hearing_is_right_as_often_as_it_says(self):
        """One number, sharply: for 40,000 hearings 0.01 is more than 5 standard errors."""
        cmdp = envs.make("tiger-treasure", p_hear=0.85)
        keys = jax.random.split(jax.random.key(1), 40_000)
        step = jax.jit(jax.vmap(cmdp.step, (0, None, None, None)))
        for context, heard in ((0, 1), (1, 2)):
            after = step(keys, jnp.int32(0), jnp.int32(2), jnp.int32(context))
            assert abs(float((after == heard).mean()) - 0.85) < 0.01
