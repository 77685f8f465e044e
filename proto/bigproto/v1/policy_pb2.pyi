import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Problem(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBLEM_UNSPECIFIED: _ClassVar[Problem]
    PROBLEM_EPISODE_UNKNOWN: _ClassVar[Problem]
    PROBLEM_EPISODE_EXPIRED: _ClassVar[Problem]
    PROBLEM_EPISODE_ENDED: _ClassVar[Problem]
    PROBLEM_EPISODE_EVICTED: _ClassVar[Problem]
    PROBLEM_EPISODE_EXPORTED: _ClassVar[Problem]
    PROBLEM_EPISODE_EXISTS: _ClassVar[Problem]
    PROBLEM_STEP_DIFFERS: _ClassVar[Problem]
    PROBLEM_STEP_AHEAD: _ClassVar[Problem]
    PROBLEM_STEP_BEHIND: _ClassVar[Problem]
    PROBLEM_OBSERVATION_INVALID: _ClassVar[Problem]
    PROBLEM_OBSERVATION_IMPOSSIBLE: _ClassVar[Problem]
    PROBLEM_ITEM_INVALID: _ClassVar[Problem]
    PROBLEM_ITEM_TOO_LATE: _ClassVar[Problem]
    PROBLEM_ITEM_OVERLOADED: _ClassVar[Problem]
    PROBLEM_SEAL_BROKEN: _ClassVar[Problem]
    PROBLEM_VERSION_MISSING: _ClassVar[Problem]
    PROBLEM_INTERNAL: _ClassVar[Problem]
PROBLEM_UNSPECIFIED: Problem
PROBLEM_EPISODE_UNKNOWN: Problem
PROBLEM_EPISODE_EXPIRED: Problem
PROBLEM_EPISODE_ENDED: Problem
PROBLEM_EPISODE_EVICTED: Problem
PROBLEM_EPISODE_EXPORTED: Problem
PROBLEM_EPISODE_EXISTS: Problem
PROBLEM_STEP_DIFFERS: Problem
PROBLEM_STEP_AHEAD: Problem
PROBLEM_STEP_BEHIND: Problem
PROBLEM_OBSERVATION_INVALID: Problem
PROBLEM_OBSERVATION_IMPOSSIBLE: Problem
PROBLEM_ITEM_INVALID: Problem
PROBLEM_ITEM_TOO_LATE: Problem
PROBLEM_ITEM_OVERLOADED: Problem
PROBLEM_SEAL_BROKEN: Problem
PROBLEM_VERSION_MISSING: Problem
PROBLEM_INTERNAL: Problem

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DTYPE_UNSPECIFIED: _ClassVar[Array.DType]
        DTYPE_BOOL: _ClassVar[Array.DType]
        DTYPE_UINT8: _ClassVar[Array.DType]
        DTYPE_INT32: _ClassVar[Array.DType]
        DTYPE_INT64: _ClassVar[Array.DType]
        DTYPE_FLOAT32: _ClassVar[Array.DType]
        DTYPE_FLOAT64: _ClassVar[Array.DType]
    DTYPE_UNSPECIFIED: Array.DType
    DTYPE_BOOL: Array.DType
    DTYPE_UINT8: Array.DType
    DTYPE_INT32: Array.DType
    DTYPE_INT64: Array.DType
    DTYPE_FLOAT32: Array.DType
    DTYPE_FLOAT64: Array.DType
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: Array.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[Array.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "minimum", "maximum", "value_names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    VALUE_NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: Array.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    minimum: float
    maximum: float
    value_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[Array.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ..., value_names: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("models", "limits", "server_version")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    limits: Limits
    server_version: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., server_version: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "current", "loaded_at", "observation", "action", "contexts", "reward_minimum", "reward_maximum", "exploration", "training", "regret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    REWARD_MINIMUM_FIELD_NUMBER: _ClassVar[int]
    REWARD_MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    REGRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    current: bool
    loaded_at: _timestamp_pb2.Timestamp
    observation: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    action: ArraySpec
    contexts: _containers.RepeatedCompositeFieldContainer[Context]
    reward_minimum: float
    reward_maximum: float
    exploration: _containers.RepeatedCompositeFieldContainer[ExplorationCost]
    training: Training
    regret: Regret
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., current: bool = ..., loaded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., observation: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., action: _Optional[_Union[ArraySpec, _Mapping]] = ..., contexts: _Optional[_Iterable[_Union[Context, _Mapping]]] = ..., reward_minimum: _Optional[float] = ..., reward_maximum: _Optional[float] = ..., exploration: _Optional[_Iterable[_Union[ExplorationCost, _Mapping]]] = ..., training: _Optional[_Union[Training, _Mapping]] = ..., regret: _Optional[_Union[Regret, _Mapping]] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("name", "prior")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    prior: float
    def __init__(self, name: _Optional[str] = ..., prior: _Optional[float] = ...) -> None: ...

class ExplorationCost(_message.Message):
    __slots__ = ("state", "action", "k_low", "k_high")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    K_LOW_FIELD_NUMBER: _ClassVar[int]
    K_HIGH_FIELD_NUMBER: _ClassVar[int]
    state: str
    action: str
    k_low: float
    k_high: float
    def __init__(self, state: _Optional[str] = ..., action: _Optional[str] = ..., k_low: _Optional[float] = ..., k_high: _Optional[float] = ...) -> None: ...

class Training(_message.Message):
    __slots__ = ("method", "finished_at", "seed", "num_demonstrations", "discount", "trainer_version", "settings")
    class Method(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        METHOD_UNSPECIFIED: _ClassVar[Training.Method]
        METHOD_LEARNED: _ClassVar[Training.Method]
        METHOD_EXACT: _ClassVar[Training.Method]
    METHOD_UNSPECIFIED: Training.Method
    METHOD_LEARNED: Training.Method
    METHOD_EXACT: Training.Method
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_DEMONSTRATIONS_FIELD_NUMBER: _ClassVar[int]
    DISCOUNT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    method: Training.Method
    finished_at: _timestamp_pb2.Timestamp
    seed: int
    num_demonstrations: int
    discount: float
    trainer_version: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, method: _Optional[_Union[Training.Method, str]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., seed: _Optional[int] = ..., num_demonstrations: _Optional[int] = ..., discount: _Optional[float] = ..., trainer_version: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Regret(_message.Message):
    __slots__ = ("value", "standard_error", "normalised", "num_episodes")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    NORMALISED_FIELD_NUMBER: _ClassVar[int]
    NUM_EPISODES_FIELD_NUMBER: _ClassVar[int]
    value: float
    standard_error: float
    normalised: float
    num_episodes: int
    def __init__(self, value: _Optional[float] = ..., standard_error: _Optional[float] = ..., normalised: _Optional[float] = ..., num_episodes: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_episodes", "max_episodes_per_caller", "max_items", "max_message_bytes", "default_lease", "max_lease", "tombstone_lifetime", "max_tombstones_per_caller")
    MAX_EPISODES_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODES_PER_CALLER_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_LIFETIME_FIELD_NUMBER: _ClassVar[int]
    MAX_TOMBSTONES_PER_CALLER_FIELD_NUMBER: _ClassVar[int]
    max_episodes: int
    max_episodes_per_caller: int
    max_items: int
    max_message_bytes: int
    default_lease: _duration_pb2.Duration
    max_lease: _duration_pb2.Duration
    tombstone_lifetime: _duration_pb2.Duration
    max_tombstones_per_caller: int
    def __init__(self, max_episodes: _Optional[int] = ..., max_episodes_per_caller: _Optional[int] = ..., max_items: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., default_lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tombstone_lifetime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_tombstones_per_caller: _Optional[int] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("model", "version", "num_episodes", "episode_ids", "seed", "rule", "lease")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_EPISODES_FIELD_NUMBER: _ClassVar[int]
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    num_episodes: int
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    rule: ActionRule
    lease: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., num_episodes: _Optional[int] = ..., episode_ids: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ..., rule: _Optional[_Union[ActionRule, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ActionRule(_message.Message):
    __slots__ = ("greedy", "epsilon_greedy", "softmax")
    class Greedy(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class EpsilonGreedy(_message.Message):
        __slots__ = ("epsilon",)
        EPSILON_FIELD_NUMBER: _ClassVar[int]
        epsilon: float
        def __init__(self, epsilon: _Optional[float] = ...) -> None: ...
    class Softmax(_message.Message):
        __slots__ = ("temperature",)
        TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
        temperature: float
        def __init__(self, temperature: _Optional[float] = ...) -> None: ...
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    EPSILON_GREEDY_FIELD_NUMBER: _ClassVar[int]
    SOFTMAX_FIELD_NUMBER: _ClassVar[int]
    greedy: ActionRule.Greedy
    epsilon_greedy: ActionRule.EpsilonGreedy
    softmax: ActionRule.Softmax
    def __init__(self, greedy: _Optional[_Union[ActionRule.Greedy, _Mapping]] = ..., epsilon_greedy: _Optional[_Union[ActionRule.EpsilonGreedy, _Mapping]] = ..., softmax: _Optional[_Union[ActionRule.Softmax, _Mapping]] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ("episode_ids", "model", "version", "lease")
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    model: str
    version: str
    lease: _duration_pb2.Duration
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("episode_ids",)
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class EndReply(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    def __init__(self, errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("request_id", "episode_ids", "steps", "observation", "details", "timeout_milliseconds")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    steps: _containers.RepeatedScalarFieldContainer[int]
    observation: _containers.RepeatedCompositeFieldContainer[Array]
    details: Details
    timeout_milliseconds: int
    def __init__(self, request_id: _Optional[int] = ..., episode_ids: _Optional[_Iterable[str]] = ..., steps: _Optional[_Iterable[int]] = ..., observation: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., details: _Optional[_Union[Details, _Mapping]] = ..., timeout_milliseconds: _Optional[int] = ...) -> None: ...

class Details(_message.Message):
    __slots__ = ("values", "belief", "entropy")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BELIEF_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    values: bool
    belief: bool
    entropy: bool
    def __init__(self, values: bool = ..., belief: bool = ..., entropy: bool = ...) -> None: ...

class ActReply(_message.Message):
    __slots__ = ("request_id", "errors", "actions", "values", "belief", "entropy", "duplicates")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BELIEF_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    actions: Array
    values: Array
    belief: Array
    entropy: Array
    duplicates: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ..., actions: _Optional[_Union[Array, _Mapping]] = ..., values: _Optional[_Union[Array, _Mapping]] = ..., belief: _Optional[_Union[Array, _Mapping]] = ..., entropy: _Optional[_Union[Array, _Mapping]] = ..., duplicates: _Optional[_Iterable[int]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("index", "problem", "message", "expected_step", "closed_at", "retry_after_milliseconds")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STEP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    problem: Problem
    message: str
    expected_step: int
    closed_at: _timestamp_pb2.Timestamp
    retry_after_milliseconds: int
    def __init__(self, index: _Optional[int] = ..., problem: _Optional[_Union[Problem, str]] = ..., message: _Optional[str] = ..., expected_step: _Optional[int] = ..., closed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retry_after_milliseconds: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("episode_id",)
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    def __init__(self, episode_id: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("step", "model", "version", "chosen", "actions", "contexts", "entropy")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    step: int
    model: str
    version: str
    chosen: int
    actions: _containers.RepeatedCompositeFieldContainer[ActionExplanation]
    contexts: _containers.RepeatedCompositeFieldContainer[ContextExplanation]
    entropy: float
    def __init__(self, step: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., chosen: _Optional[int] = ..., actions: _Optional[_Iterable[_Union[ActionExplanation, _Mapping]]] = ..., contexts: _Optional[_Iterable[_Union[ContextExplanation, _Mapping]]] = ..., entropy: _Optional[float] = ...) -> None: ...

class ActionExplanation(_message.Message):
    __slots__ = ("name", "value", "reward_mean", "reward_deviation", "explores")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REWARD_MEAN_FIELD_NUMBER: _ClassVar[int]
    REWARD_DEVIATION_FIELD_NUMBER: _ClassVar[int]
    EXPLORES_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    reward_mean: float
    reward_deviation: float
    explores: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., reward_mean: _Optional[float] = ..., reward_deviation: _Optional[float] = ..., explores: bool = ...) -> None: ...

class ContextExplanation(_message.Message):
    __slots__ = ("name", "probability", "expert")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    name: str
    probability: float
    expert: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., probability: _Optional[float] = ..., expert: _Optional[_Iterable[float]] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("episode_ids", "close")
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    close: bool
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ..., close: bool = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("episodes", "errors")
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    episodes: _containers.RepeatedCompositeFieldContainer[SealedEpisode]
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    def __init__(self, episodes: _Optional[_Iterable[_Union[SealedEpisode, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ...) -> None: ...

class ImportRequest(_message.Message):
    __slots__ = ("episodes",)
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    episodes: _containers.RepeatedCompositeFieldContainer[SealedEpisode]
    def __init__(self, episodes: _Optional[_Iterable[_Union[SealedEpisode, _Mapping]]] = ...) -> None: ...

class ImportReply(_message.Message):
    __slots__ = ("episode_ids", "errors")
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ...) -> None: ...

class SealedEpisode(_message.Message):
    __slots__ = ("state", "seal")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    seal: bytes
    def __init__(self, state: _Optional[bytes] = ..., seal: _Optional[bytes] = ...) -> None: ...

class EpisodeState(_message.Message):
    __slots__ = ("episode_id", "owner", "model", "version", "next_step", "rule", "lease", "random_key", "policy_state", "last_observation", "last_reply", "seed")
    class PolicyStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Array
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RANDOM_KEY_FIELD_NUMBER: _ClassVar[int]
    POLICY_STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    LAST_REPLY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    owner: str
    model: str
    version: str
    next_step: int
    rule: ActionRule
    lease: _duration_pb2.Duration
    random_key: bytes
    policy_state: _containers.MessageMap[str, Array]
    last_observation: _containers.RepeatedCompositeFieldContainer[Array]
    last_reply: ActReply
    seed: int
    def __init__(self, episode_id: _Optional[str] = ..., owner: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., next_step: _Optional[int] = ..., rule: _Optional[_Union[ActionRule, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., random_key: _Optional[bytes] = ..., policy_state: _Optional[_Mapping[str, Array]] = ..., last_observation: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., last_reply: _Optional[_Union[ActReply, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "path")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    model: str
    path: str
    def __init__(self, model: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LoadModelReply(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...
