"""Who calls, and over what: tokens, certificates of callers, and the server's own.

Every secret is a file that others on the machine must not be able to read, and none of it appears
in an error or in the log. A file that changes is read again; if it is broken by then, the log says
so, and what was read before stays.
"""

import hashlib
import hmac
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, final

import grpc

from bigserve.config import NAME, TLSConfig
from bigserve.errors import ConfigError, Unauthenticated

logger = logging.getLogger(__name__)

_OTHERS, _GROUP_AND_OTHERS = 0o007, 0o077
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")  # what RFC 6750 lets follow the word Bearer
_ROLES = {"caller": False, "operator": True}
_CHECK_SECONDS = 1.0
_LEAST_KEY_BYTES = 32


class Caller(NamedTuple):
    """Who a call is from. Episodes belong to the name; operators may call Admin."""

    name: str
    operator: bool


ANONYMOUS = Caller("anonymous", operator=False)
_OPERATOR = ANONYMOUS._replace(operator=True)


@final
class Tokens:
    """The callers of a file, by token; read again when the file changes.

    A line is NAME ROLE TOKEN: a name of letters, digits and `._-`, `caller` or `operator`, and at
    least 16 characters of those that a bearer token may have. A name may have several lines, so
    that its token can be replaced without a gap. Blank lines, and those from a `#` on, say nothing.
    """

    def __init__(self, path: Path):
        self._path = path
        self._signature = _signature(path)
        self._callers = _read_tokens(path)
        self._checked = time.monotonic()
        self._generation = 0

    def refresh(self) -> int:
        """Reads a file that has changed; a number that grows whenever one was read."""
        now = time.monotonic()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            if _signature(self._path) != self._signature:
                self.reload()
        return self._generation

    def find(self, token: str) -> Caller | None:
        """The caller that has this token."""
        self.refresh()
        digest = hashlib.sha256(token.encode()).digest()
        # A prefix finds; whether it is the token is decided in a time that tells nothing.
        known, caller = self._callers.get(digest[:8], (b"", None))
        return caller if hmac.compare_digest(known, digest) else None

    def reload(self) -> None:
        """Reads the file again; if it is broken the tokens stay, and the log says what is wrong."""
        self._signature = _signature(self._path)
        try:
            self._callers = _read_tokens(self._path)
        except ConfigError as error:
            logger.error("The tokens stay as they were. %s", error)
        else:
            self._generation += 1
            logger.info("Tokens were read again.", extra={"tokens": len(self._callers)})


@final
class Authenticator:
    """Tells who calls: by a bearer token, or else by a certificate, or else nobody in particular.

    With neither tokens nor certificates everybody is anonymous, and an operator only if `trusted`:
    if nobody beyond this machine can call. Certificates make no operators; tokens do.
    """

    def __init__(self, tokens: Tokens | None, mutual_tls: bool, trusted: bool):
        self._tokens = tokens
        self._mutual_tls = mutual_tls
        self._anonymous = _OPERATOR if trusted else ANONYMOUS

    def refresh(self) -> int:
        """A number that grows when credentials were read again: who was known may be no more."""
        return 0 if self._tokens is None else self._tokens.refresh()

    def identify(self, context: grpc.aio.ServicerContext) -> Caller:
        """The caller, or `Unauthenticated`."""
        if self._tokens is not None:
            given = [v for k, v in context.invocation_metadata() or () if k == "authorization"]
            if given:
                return _find_bearer(self._tokens, given)
        if self._mutual_tls:
            return Caller(f"cert:{_certificate_name(context.auth_context())}", operator=False)
        if self._tokens is not None:
            raise Unauthenticated(
                "The call must have the metadata `authorization: Bearer TOKEN`, got none."
            )
        return self._anonymous


def server_credentials(tls: TLSConfig) -> grpc.ServerCredentials | None:
    """What a secure port needs, or None without TLS; new files hold from the next connection on.

    With `client_roots`, a client without a certificate from there gets no connection.
    """
    if tls.certificate is None or tls.key is None:
        return None
    certificate, key, roots = tls.certificate, tls.key, tls.client_roots
    files = [certificate, key, *([roots] if roots else [])]
    signatures = [_signature(path) for path in files]
    initial = _certificates(certificate, key, roots)

    def renew() -> grpc.ServerCertificateConfiguration | None:
        nonlocal signatures
        found = [_signature(path) for path in files]
        if found == signatures:
            return None
        signatures = found
        try:
            renewed = _certificates(certificate, key, roots)
        except ConfigError as error:
            logger.error("The certificate stays as it was. %s", error)
            return None
        logger.info("The certificate was read again.")
        return renewed

    # gRPC's annotation forgets the None that its documentation has for "no change".
    return grpc.dynamic_ssl_server_credentials(initial, renew, roots is not None)  # pyright: ignore[reportArgumentType]


def read_seal_key(path: Path) -> bytes:
    """The bytes of the file, all of them, as the key that seals episodes."""
    key = _read(path, _GROUP_AND_OTHERS)
    if len(key) < _LEAST_KEY_BYTES:
        raise ConfigError(
            f"The seal key in `{path}` must have at least {_LEAST_KEY_BYTES} bytes, got {len(key)}."
        )
    return key


def _read_tokens(path: Path) -> dict[bytes, tuple[bytes, Caller]]:
    """Digests of tokens and their callers, by the first 8 bytes of the digest."""
    try:
        lines = _read(path, _OTHERS).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"`{path}` must be ASCII text, a caller a line.") from None
    callers: dict[bytes, tuple[bytes, Caller]] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        place = f"Line {number} of `{path}`"
        if len(fields) != 3 or fields[1] not in _ROLES:
            raise ConfigError(
                f"{place} must be a name, `caller` or `operator`, and a token, with spaces between."
            )
        name, role, token = fields
        if not NAME.fullmatch(name) or name == ANONYMOUS.name:
            raise ConfigError(
                f"{place} must begin with a name of up to 64 letters, digits and `._-`, "
                f"other than `{ANONYMOUS.name}`."
            )
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{place} must have a token of at least 16 letters, digits and `._~+/=-`, for "
                "instance what `openssl rand -hex 32` prints."
            )
        digest = hashlib.sha256(token.encode()).digest()
        if digest[:8] in callers:
            raise ConfigError(f"{place} has a token that an earlier line has. Each needs its own.")
        callers[digest[:8]] = digest, Caller(name, _ROLES[role])
    return callers


def _find_bearer(tokens: Tokens, given: list[str | bytes]) -> Caller:
    scheme, _, token = str(given[0]).partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer":
        raise Unauthenticated("The metadata `authorization` must be one `Bearer TOKEN`.")
    caller = tokens.find(token.strip())
    if caller is None:
        raise Unauthenticated("The token in the metadata `authorization` is not known here.")
    return caller


def _certificate_name(authentication: Mapping[str, Iterable[bytes]]) -> str:
    """The subject's common name or, without one, its only alternative name."""
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        match [name for name in authentication.get(key, ()) if name]:
            case [name]:
                return name.decode(errors="backslashreplace")
    raise Unauthenticated(
        "The client's certificate must have a common name, or one subject alternative name."
    )


def _certificates(
    certificate: Path, key: Path, roots: Path | None
) -> grpc.ServerCertificateConfiguration:
    """Reads and checks the files: gRPC itself would only fail every connection."""
    pairs = [(_read(key, _OTHERS), _read_certificates(certificate))]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except OSError as error:  # of ssl, or of a file that is just being replaced
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"`{key}` must be the key of `{certificate}`, and is not.") from None
        raise ConfigError(f"`{key}` must be a private key in PEM, not encrypted.") from None
    return grpc.ssl_server_certificate_configuration(
        pairs, None if roots is None else _read_certificates(roots)
    )


def _read_certificates(path: Path) -> bytes:
    data = _read(path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"`{path}` must hold certificates in PEM.") from None
    return data


def _read(path: Path, forbidden: int = 0) -> bytes:
    """The bytes of a file whose mode has none of the `forbidden` bits."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & forbidden:
                raise ConfigError(
                    f"`{path}` must be closed to others, but its mode is {mode:04o}. Close it by "
                    f"`chmod {mode & ~forbidden:04o} {path}`."
                )
            return file.read()
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file we can read: {error.strerror}.") from None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What differs once a file was written, replaced or closed to others; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
