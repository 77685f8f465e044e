"""Settings of the server: what is refused, what counts as loopback; and the command around them."""

import dataclasses
import importlib.metadata
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bigserve.cli import main, parse, parse_models
from bigserve.config import (
    BatchingConfig,
    LimitsConfig,
    ServerConfig,
    TLSConfig,
    is_loopback,
    split_address,
)
from bigserve.connections import OWN_DESCRIPTORS, options, reserve_descriptors
from bigserve.errors import ConfigError, SnapshotError
from bigtrain.errors import NotABundleError
from bigtrain.policy import BLOCK


@pytest.mark.parametrize(
    "listen",
    [
        "127.0.0.1:8500",
        "127.255.0.3:0",
        "[::1]:8500",
        "[::ffff:127.0.0.1]:8500",
        "localhost:8500",
        "LocalHost:8500",
        "unix:/run/big.sock",
    ],
)
def test_loopback_is_known(listen):
    assert is_loopback(listen)
    assert ServerConfig(listen=listen).listen == listen


@pytest.mark.parametrize(
    "listen",
    [
        "0.0.0.0:8500",
        "[::]:8500",
        "[::ffff:10.0.0.1]:8500",
        "[::ffff:0.0.0.0]:8500",
        "10.0.0.1:8500",
        "128.0.0.1:8500",
        "127.0.0.1.evil.com:8500",
        "localhost.evil.com:8500",
        "robots:8500",
    ],
)
def test_beyond_loopback_there_must_be_tls(listen):
    assert not is_loopback(listen)
    with pytest.raises(ConfigError, match=r"must be TLS.*`insecure`"):
        ServerConfig(listen=listen)
    ServerConfig(listen=listen, insecure=True)
    ServerConfig(listen=listen, tls=TLSConfig(Path("c.pem"), Path("k.pem")))


@pytest.mark.parametrize(
    "listen",
    [":8500", "8500", "", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:8500",
     "[::1]", "[127.0.0.1]:8500", "[localhost]:8500", "127.0.0.1:85:00", "a b:1", "http://a:1",
     "127.0.0.1:8500\n", "127.0.0.1:٣"],
)  # fmt: skip
def test_what_is_no_address_is_refused(listen):
    for name in ("listen", "metrics_listen"):
        with pytest.raises(ConfigError, match=f"`{name}` must be HOST:PORT"):
            ServerConfig(insecure=True, **{name: listen})


def test_no_host_is_not_loopback():
    assert not is_loopback(":8500")


def test_addresses_are_split():
    assert split_address("listen", "0.0.0.0:65535") == ("0.0.0.0", 65535)
    assert split_address("listen", "[fe80::1%eth0]:0") == ("fe80::1%eth0", 0)


@pytest.mark.parametrize("path", ["", "run/big.sock", "/", "//" + "x" * 106])
def test_a_socket_has_an_absolute_path_that_fits(path):
    with pytest.raises(ConfigError, match="absolute path of at most 107 bytes"):
        ServerConfig(listen=f"unix:{path}")


def test_metrics_have_no_socket():
    with pytest.raises(ConfigError, match="`metrics_listen`"):
        ServerConfig(metrics_listen="unix:/run/metrics.sock")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_episodes", 0),
        ("max_episodes_per_caller", 2**31),
        ("max_items", -1),
        ("max_message_bytes", 4095),
        ("max_queued_steps", 1023),  # below `max_items`
        ("default_lease", 0.0),
        ("default_lease", 3601.0),  # above `max_lease`
        ("max_lease", float("inf")),
        ("tombstone_lifetime", float("nan")),
        ("tombstone_lifetime", -1.0),
    ],
)
def test_limits_outside_their_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"^`{name}` must .* got {value}"):
        LimitsConfig(**{name: value})


def test_the_document_has_every_limit_and_its_default():
    document = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `--limits\.([a-z-]+)` \| (\d+) \|", document, re.MULTILINE)
    explained = {name.replace("-", "_"): float(default) for name, default in table}
    assert explained == dataclasses.asdict(LimitsConfig())
    assert f"| `--log-rate` | {ServerConfig().log_rate} |" in document
    assert f"which is {LimitsConfig().max_connections + OWN_DESCRIPTORS} by default" in document


@pytest.mark.parametrize("name", ["max_connections", "max_streams", "max_calls", "max_held_bytes"])
def test_bounds_are_at_least_1(name):
    with pytest.raises(ConfigError, match=f"`{name}` must be from 1 to"):
        LimitsConfig(**{name: 0})


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(LimitsConfig) if "timeout" in f.name]
)
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_timeouts_are_times(name, seconds):
    with pytest.raises(ConfigError, match=f"`{name}` must be from 0.001 to 1e"):
        LimitsConfig(**{name: seconds})


@pytest.mark.parametrize(
    "soft, hard, wanted",
    [(1024, 4096, 1152), (2048, 2048, None), (resource.RLIM_INFINITY, 0, None)],
)
def test_descriptors_are_reserved_for_all_connections(soft, hard, wanted, monkeypatch):
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    reserve_descriptors(1024)
    assert given == ([(wanted, hard)] if wanted else [])


def test_connections_that_are_silent_amid_calls_are_pinged_as_the_document_says():
    found = dict(options(LimitsConfig()))
    assert found["grpc.keepalive_time_ms"] == 60_000
    assert found["grpc.keepalive_timeout_ms"] == 20_000
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert "| | 60, then 20 | seconds until a connection that is silent amid calls" in text


def test_more_connections_than_descriptors_are_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1100))
    with pytest.raises(ConfigError, match=r"of which it may have 1100, got 1024\. .*LimitNOFILE="):
        reserve_descriptors(1024)


@pytest.mark.parametrize("sizes", [(), (0, 1), (1.5,), (4, 1), (1, 1), (-1,)])
def test_batch_sizes_are_rising_multiples_of_a_block(sizes):
    BatchingConfig((BLOCK, 3 * BLOCK))
    with pytest.raises(ConfigError, match=f"rising multiples of {BLOCK}, got"):
        BatchingConfig(tuple(int(size * BLOCK) for size in sizes))


def test_the_largest_message_fits_the_largest_batch():
    ServerConfig(batching=BatchingConfig((64, 1024)))
    with pytest.raises(ConfigError, match=r"at least `max_items`, 1024.*got 512"):
        ServerConfig(batching=BatchingConfig((64, 512)))


@pytest.mark.parametrize(
    "given",
    [(Path("c"), None, None), (None, Path("k"), None), (None, None, Path("r"))],
)
def test_tls_is_whole_or_absent(given):
    with pytest.raises(ConfigError, match="must"):
        TLSConfig(*given)


@pytest.mark.parametrize(
    ("name", "value"), [("grace", -1.0), ("log_level", "loud"), ("log_format", "xml")]
)
def test_other_settings_are_checked(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` must .*{value}"):
        ServerConfig(**{name: value})


def test_a_snapshot_needs_a_directory(tmp_path):
    ServerConfig(snapshot=tmp_path / "episodes")
    with pytest.raises(ConfigError, match="`snapshot`"):
        ServerConfig(snapshot=tmp_path / "nowhere" / "episodes")


# The command


def test_files_become_models():
    models = parse_models(["a/tiger.big", "maze=b/tiger.big", "x=c=d.big", "e.v2.big"])
    want = {"tiger": "a/tiger.big", "maze": "b/tiger.big", "x": "c=d.big", "e.v2": "e.v2.big"}
    assert models == {name: Path(path) for name, path in want.items()}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], "at least one file"),
        ([""], "FILE or NAME=FILE"),
        (["a/tiger.big", "b/tiger.big"], "names that differ, got `tiger` for a/tiger.big and b"),
        (["a=x.big", "a=y.big"], "names that differ"),
        (["=x.big"], "A model's name must be"),
        (["a b=x.big"], "A model's name must be"),
        (["./a=b.big"], "A model's name must be .* got 'a=b'"),  # a path: no name has a slash
    ],
)
def test_models_without_a_name_of_their_own_are_refused(files, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_models(files)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the command asked to be served; an exception put in is raised instead."""
    calls: list = []

    def run(models, config):
        if calls:
            raise calls.pop()
        calls.append((models, config))

    server = ModuleType("bigserve.server")
    server.run = run  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "bigserve.server", server)
    monkeypatch.setattr("bigserve.logs.configure", lambda level, format, rate: None)
    return calls


def test_flags_become_settings(served, tmp_path):
    flags = ["--listen", "[::1]:0", "--limits.max-items", "64", "--no-admin", "--grace", "5"]
    flags += ["--batching.sizes", "32", "64", "--snapshot", str(tmp_path / "s")]
    assert main(["m=x.big", "y.big", *flags]) == 0
    ((models, config),) = served
    assert models == {"m": Path("x.big"), "y": Path("y.big")}
    assert config == ServerConfig(
        listen="[::1]:0",
        admin=False,
        snapshot=tmp_path / "s",
        grace=5.0,
        limits=LimitsConfig(max_items=64),
        batching=BatchingConfig((32, 64)),
    )


def test_flags_default_to_the_settings_own():
    assert parse(["x.big"]).config == ServerConfig()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("`grace` must be 1."), 2, "bigserve: `grace` must be 1."),
        (SnapshotError("The snapshot\nis torn."), 1, "bigserve: The snapshot is torn."),
        (NotABundleError("No bundle."), 1, "bigserve: No bundle."),
        (FileNotFoundError(2, "No such file", "x.big"), 1, "bigserve: `x.big` cannot be used: No"),
        (RuntimeError("odd"), 1, "bigserve: RuntimeError: odd. With `--log-level debug` you"),
        (KeyboardInterrupt(), 130, "bigserve: interrupted."),
    ],
)
def test_an_error_is_one_line_and_a_code(served, capsys, error, code, line):
    served.append(error)
    assert main(["x.big"]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith(line)
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_hangup_before_the_server_listens_for_it_does_not_end_it(served, monkeypatch):
    handlers, former = [], signal.getsignal(signal.SIGHUP)
    import_it = lambda *_: handlers.append(signal.getsignal(signal.SIGHUP))  # noqa: E731
    monkeypatch.setattr(sys.modules["bigserve.server"], "run", import_it)
    assert main(["x.big"]) == 0
    assert handlers == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGHUP) == former


def test_debugging_shows_where(served, capsys):
    served.append(RuntimeError("odd"))
    assert main(["x.big", "--log-level", "debug"]) == 1
    assert "in run" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--limits.max-items", "0"], ["--listen", "0.0.0.0:1"], ["-x"]])
def test_misuse_serves_nothing(served, capsys, flags):
    assert main(["x.big", *flags]) == 2
    assert capsys.readouterr().err
    assert served == []


def test_the_open_door_is_pointed_out(served, caplog, tmp_path):
    main(["x.big", "--listen", "0.0.0.0:0", "--insecure", "--tokens", str(tmp_path / "t")])
    main(["x.big"])
    assert not caplog.records
    served.clear()
    main(["x.big", "--listen", "0.0.0.0:0", "--insecure"])
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "0.0.0.0:0" in caplog.text


def test_help_and_version_do_not_wait_for_jax():
    """Both in one process of its own, where nothing has imported it."""
    code = (
        "import sys; from bigserve.cli import main; assert main(['--version']) == 0; "
        "assert main(['--help']) == 0; assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"bigserve {importlib.metadata.version('big-imitation')}\n")
    assert "--limits.max-episodes-per-caller" in done.stdout
