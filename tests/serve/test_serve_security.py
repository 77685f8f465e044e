"""Who calls, by token and certificate; files that change; secrets that stay secret."""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from bigserve import security
from bigserve.config import TLSConfig
from bigserve.errors import ConfigError, Unauthenticated
from bigserve.security import ANONYMOUS, Authenticator, Caller, Tokens, read_seal_key

PEM = Path(__file__).parents[1] / "data" / "tls"
TOKEN, OTHER = "0123456789abcdef", "fedcba9876543210"


class Context:
    """What `identify` asks of a call's context."""

    def __init__(self, *metadata: tuple[str, str | bytes], **authentication: list[bytes]):
        self.invocation_metadata = lambda: metadata or None
        self.auth_context = lambda: authentication


def identify(authenticator: Authenticator, *metadata, **authentication) -> Caller:
    return authenticator.identify(Context(*metadata, **authentication))  # pyright: ignore


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    text = f"# who may call\n\nrobot-7 caller {TOKEN}  # the red one\nops\toperator {OTHER}\n"
    return write(tmp_path / "tokens", text)


# Tokens


def test_a_token_names_its_caller(file):
    tokens = Tokens(file)
    assert tokens.find(TOKEN) == Caller("robot-7", operator=False)
    assert tokens.find(OTHER) == Caller("ops", operator=True)
    for unknown in ("", "robot-7", TOKEN + "0", TOKEN[:-1], "0" * 16, "é" * 16):
        assert tokens.find(unknown) is None


def test_a_name_may_have_two_tokens(tmp_path):
    tokens = Tokens(write(tmp_path / "t", f"a caller {TOKEN}\na caller {OTHER}\n"))
    assert tokens.find(TOKEN) == tokens.find(OTHER) == Caller("a", operator=False)


def test_tokens_are_not_kept(file):
    tokens = Tokens(file)
    assert TOKEN not in repr(vars(tokens))
    assert TOKEN.encode() not in repr(vars(tokens)).encode()


SECRET = "s3cr3t-s3cr3t-s3cr3t"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"robot {SECRET}", "must be a name, `caller` or `operator`, and a token"),
        (f"robot admin {SECRET}", "must be a name, `caller` or `operator`, and a token"),
        (f"robot caller {SECRET} more", "must be a name, `caller` or `operator`, and a token"),
        (SECRET, "must be a name, `caller` or `operator`, and a token"),
        ("robot caller s3cr3t-s3cr3t-s", "at least 16"),
        (f"robot caller {SECRET}!", "at least 16"),
        (f"cert:robot caller {SECRET}", "must begin with a name"),
        (f"anonymous caller {SECRET}", "other than `anonymous`"),
        (f"{'x' * 65} caller {SECRET}", "up to 64"),
        (f"robot caller {SECRET}\nother caller {SECRET}", "an earlier line has"),
    ],
)
def test_a_malformed_line_is_refused_by_its_number_alone(tmp_path, line, complaint):
    path = write(tmp_path / "tokens", f"# first\n{line}\n")
    with pytest.raises(ConfigError, match=rf"^Line [23] of `{path}` .*{complaint}") as got:
        Tokens(path)
    assert "s3cr3t" not in str(got.value)
    assert got.value.__cause__ is None


def test_a_file_that_others_can_read_is_refused(file):
    file.chmod(0o640)
    Tokens(file)
    for mode in (0o644, 0o602):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=rf"mode is {mode:04o}\. .* `chmod 06[04]0 "):
            Tokens(file)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be ASCII"):
        Tokens(write(tmp_path / "t", b"\xff\xfe"))
    with pytest.raises(ConfigError, match="No such file"):
        Tokens(tmp_path / "nothing")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that `security` sees, in its one place."""
    now = [1000.0]
    monkeypatch.setattr(security.time, "monotonic", lambda: now[0])
    return now


def test_a_new_file_is_read_within_a_second(file, clock, monkeypatch):
    tokens = Tokens(file)
    checks = itertools.count()
    signature = security._signature
    monkeypatch.setattr(security, "_signature", lambda path: (next(checks), signature(path))[1])
    os.replace(write(file.with_name("new"), f"ops operator {TOKEN}\n"), file)
    clock[0] += 0.9
    assert tokens.find(TOKEN) == Caller("robot-7", operator=False)
    assert next(checks) == 0
    clock[0] += 0.2
    assert tokens.find(TOKEN) == Caller("ops", operator=True)
    assert tokens.find(OTHER) is None


def test_a_broken_new_file_changes_nothing_and_is_logged_once(file, clock, caplog):
    tokens = Tokens(file)
    write(file, f"robot-7 caller {SECRET} again\n")
    for _ in range(3):
        clock[0] += 2
        assert tokens.find(TOKEN) == Caller("robot-7", operator=False)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "The tokens stay as they were. Line 1 of" in record.getMessage()
    assert SECRET not in caplog.text
    file.unlink()
    tokens.reload()
    assert tokens.find(TOKEN) is not None


def test_a_file_that_is_closed_to_others_is_read_at_last(file, clock):
    tokens = Tokens(file)
    write(file, f"robot-8 caller {TOKEN}\n", 0o644)
    clock[0] += 2
    assert tokens.find(TOKEN) == Caller("robot-7", operator=False)
    file.chmod(0o600)
    clock[0] += 2
    assert tokens.find(TOKEN) == Caller("robot-8", operator=False)


def test_reload_does_not_wait(file, clock, caplog):
    tokens = Tokens(file)
    write(file, f"robot-8 caller {TOKEN}\n")
    with caplog.at_level(logging.INFO):
        tokens.reload()
    assert tokens.find(TOKEN) == Caller("robot-8", operator=False)
    assert caplog.records[-1].tokens == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_seal_key_is_all_bytes_of_a_closed_file(tmp_path):
    key = bytes(range(32)) + b"\n"
    assert read_seal_key(write(tmp_path / "key", key)) == key
    with pytest.raises(ConfigError, match="at least 32 bytes, got 31"):
        read_seal_key(write(tmp_path / "key", key[:31]))
    with pytest.raises(ConfigError, match="`chmod 0600 "):
        read_seal_key(write(tmp_path / "key", key, 0o640))


# Who calls


def test_a_bearer_token_is_read_from_the_metadata(file):
    authenticator = Authenticator(Tokens(file), mutual_tls=False, trusted=True)
    want = Caller("robot-7", operator=False)
    for scheme in ("Bearer", "bearer", "BEARER"):
        header = ("authorization", f"{scheme} {TOKEN}")
        assert identify(authenticator, ("user-agent", "x"), header) == want


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ([], "must have the metadata `authorization: Bearer TOKEN`, got none"),
        (["Bearer unknown-unknown-unknown"], "not known here"),
        (["Bearer "], "not known here"),
        (["Bearer"], "not known here"),
        ([f"Basic {TOKEN}"], "must be one `Bearer TOKEN`"),
        ([TOKEN], "must be one `Bearer TOKEN`"),
        ([f"Bearer {TOKEN}", f"Bearer {OTHER}"], "must be one `Bearer TOKEN`"),
    ],
)
def test_without_a_known_token_nobody_gets_in(file, headers, complaint):
    """Not even on a trusted address, once tokens are asked for."""
    authenticator = Authenticator(Tokens(file), mutual_tls=False, trusted=True)
    with pytest.raises(Unauthenticated, match=complaint) as got:
        identify(authenticator, *(("authorization", header) for header in headers))
    assert got.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in str(got.value) and "unknown-unknown" not in str(got.value)


def test_with_neither_everybody_is_anonymous():
    open_door = Authenticator(None, mutual_tls=False, trusted=False)
    assert identify(open_door, ("authorization", f"Bearer {TOKEN}")) == ANONYMOUS
    assert not ANONYMOUS.operator
    at_home = Authenticator(None, mutual_tls=False, trusted=True)
    assert identify(at_home) == Caller(ANONYMOUS.name, operator=True)


def test_a_certificate_names_its_caller(file):
    certified = Authenticator(None, mutual_tls=True, trusted=True)
    both = {"x509_common_name": [b"robot-7"], "x509_subject_alternative_name": [b"x", b"y"]}
    only = {"x509_common_name": [b""], "x509_subject_alternative_name": [b"spiffe://a/b"]}
    assert identify(certified, **both) == Caller("cert:robot-7", operator=False)
    assert identify(certified, **only) == Caller("cert:spiffe://a/b", operator=False)
    for nameless in ({}, {"x509_subject_alternative_name": [b"x", b"y"]}):
        with pytest.raises(Unauthenticated, match="must have a common name"):
            identify(certified, **nameless)


def test_a_token_goes_before_a_certificate(file):
    either = Authenticator(Tokens(file), mutual_tls=True, trusted=False)
    name = {"x509_common_name": [b"robot-7"]}
    header = ("authorization", f"Bearer {OTHER}")
    assert identify(either, header, **name) == Caller("ops", operator=True)
    assert identify(either, **name) == Caller("cert:robot-7", operator=False)
    with pytest.raises(Unauthenticated, match="not known"):
        identify(either, ("authorization", "Bearer wrong"), **name)


# TLS


@pytest.fixture
def tls(tmp_path: Path) -> TLSConfig:
    """The server's files, copied to where they can change."""
    config = TLSConfig(tmp_path / "tls.pem", tmp_path / "tls.key", tmp_path / "roots.pem")
    install("server", config)
    shutil.copy(PEM / "roots.pem", tmp_path)
    return config


def install(name: str, tls: TLSConfig) -> None:
    assert tls.certificate and tls.key
    write(tls.key, (PEM / f"{name}.key").read_bytes())
    write(tls.certificate, (PEM / f"{name}.pem").read_bytes())


def test_without_a_certificate_there_are_no_credentials():
    assert security.server_credentials(TLSConfig()) is None


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tls.pem", None, "tls.pem` must be a file we can read: No such file"),
        ("tls.key", None, "tls.key` must be a file we can read: No such file"),
        ("roots.pem", None, "roots.pem` must be a file we can read: No such file"),
        ("tls.pem", b"no PEM", "tls.pem` must hold certificates in PEM"),
        ("tls.pem", b"\xff", "tls.pem` must hold certificates in PEM"),
        ("tls.pem", b"", "tls.pem` must hold certificates in PEM"),
        ("roots.pem", b"no PEM", "roots.pem` must hold certificates in PEM"),
        ("tls.key", b"no PEM", "tls.key` must be a private key in PEM, not encrypted"),
        ("tls.key", (PEM / "named.key").read_bytes(), "tls.key` must be the key of `.*tls.pem`"),
    ],
)
def test_files_that_cannot_serve_are_named(tls, tmp_path, name, content, complaint):
    (tmp_path / name).unlink()
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(ConfigError, match=complaint):
        security.server_credentials(tls)


def test_a_key_that_others_can_read_is_refused(tls):
    tls.key.chmod(0o644)
    with pytest.raises(ConfigError, match="`chmod 0640"):
        security.server_credentials(tls)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all tests: gRPC stays with the first that it meets."""
    with asyncio.Runner() as runner:
        yield runner


Call = Callable[..., Awaitable[bytes]]


@contextlib.asynccontextmanager
async def serving(
    tls: TLSConfig, authenticator: Authenticator
) -> AsyncIterator[tuple[Call, tuple[str, int]]]:
    """A server that answers every call with the caller's name, and a way to call it anew."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return authenticator.identify(context).name.encode()
        except Unauthenticated as error:
            await context.abort(error.code, str(error))

    method = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x", {"who": method}),))
    credentials = security.server_credentials(tls)
    assert credentials is not None
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()

    async def call(client: str | None, *metadata: tuple[str, str]) -> bytes:
        pair = [(PEM / f"{client}.{kind}").read_bytes() for kind in ("key", "pem") if client]
        known = grpc.ssl_channel_credentials((PEM / "roots.pem").read_bytes(), *pair)
        # A pool of its own: else gRPC calls again over a connection that it has.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{port}", known, options) as channel:
            return await channel.unary_unary("/x/who")(b"", metadata=metadata, timeout=20)

    try:
        yield call, ("127.0.0.1", port)
    finally:
        await server.stop(None)


def test_mutual_tls_names_callers_and_shuts_out_the_rest(tls, file, loop):
    async def check() -> None:
        authenticator = Authenticator(Tokens(file), mutual_tls=True, trusted=False)
        async with serving(tls, authenticator) as (call, _):
            assert await call("named") == b"cert:robot-7"
            assert await call("unnamed") == b"cert:spiffe://fleet.test/robot-8"
            assert await call("named", ("authorization", f"Bearer {OTHER}")) == b"ops"
            with pytest.raises(grpc.aio.AioRpcError) as got:
                await call("named", ("authorization", "Bearer nobody"))
            assert got.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as got:
                await call(None)
            assert got.value.code() is grpc.StatusCode.UNAVAILABLE

    loop.run(check())


def test_tls_alone_asks_for_no_certificate(tls, file, loop):
    async def check() -> None:
        plain = TLSConfig(tls.certificate, tls.key)
        authenticator = Authenticator(Tokens(file), mutual_tls=False, trusted=False)
        async with serving(plain, authenticator) as (call, _):
            assert await call(None, ("authorization", f"Bearer {TOKEN}")) == b"robot-7"
            with pytest.raises(grpc.aio.AioRpcError, match="got none"):
                await call(None)

    loop.run(check())


def test_a_new_certificate_holds_from_the_next_connection(tls, caplog, loop):
    caplog.set_level(logging.INFO, "bigserve")

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == security.logger.name]

    async def check() -> None:
        plain = TLSConfig(tls.certificate, tls.key)
        authenticator = Authenticator(None, mutual_tls=False, trusted=False)
        async with serving(plain, authenticator) as (call, address):

            async def shown() -> str:
                assert await call(None) == b"anonymous"
                return await asyncio.to_thread(ssl.get_server_certificate, address)

            assert await shown() == (PEM / "server.pem").read_text()
            assert logged() == []

            write(tls.key, b"half a ke")
            assert await shown() == (PEM / "server.pem").read_text()
            (complaint,) = logged()
            assert complaint.startswith("The certificate stays as it was.")

            install("renewed", plain)
            assert await shown() == (PEM / "renewed.pem").read_text()
            assert logged() == [complaint, "The certificate was read again."]

    loop.run(check())
