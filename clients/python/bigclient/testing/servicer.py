"""The methods of the service: who calls, what goes wrong, and which rule of `table` applies."""

import collections
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc

from bigproto.v1 import policy_pb2, policy_pb2_grpc

from .faults import Fault, Faults
from .table import Refusal, Table


class Servicer(policy_pb2_grpc.PolicyServicer):
    """Answers calls by the rules of a table, one at a time."""

    def __init__(
        self,
        table: Table,
        lock: threading.Lock,
        faults: Faults,
        tokens: Mapping[str, str] | None,
        calls: collections.Counter[str],
    ):
        self._table = table
        self._lock = lock
        self._faults = faults
        self._tokens = tokens
        self._calls = calls

    def Describe(self, request, context):
        """What is loaded."""
        return self._call("Describe", lambda owner, r: self._table.describe(r), request, context)

    def Start(self, request, context):
        """Starts episodes."""
        return self._call("Start", self._table.start, request, context)

    def End(self, request, context):
        """Ends episodes."""
        return self._call("End", self._table.end, request, context)

    def Act(self, request, context):
        """One step of each item."""
        return self._call("Act", self._table.act, request, context)

    def Explain(self, request, context):
        """The last step of an episode."""
        return self._call("Explain", self._table.explain, request, context)

    def Export(self, request, context):
        """Episodes, sealed."""
        return self._call("Export", self._table.export, request, context)

    def Import(self, request, context):
        """Goes on with exported episodes."""
        return self._call("Import", self._table.import_, request, context)

    def ActStream(self, request_iterator, context) -> Iterator[policy_pb2.ActReply]:
        """The same as Act, one message after the other."""
        held = []
        with _aborting(context):
            for request in request_iterator:
                fault, reply = self._answer("ActStream", self._table.act, request, context)
                match fault and fault.kind:
                    case "cut":
                        raise Refusal(grpc.StatusCode.UNAVAILABLE, "Cut, as the test wants it.")
                    case "lose":
                        continue
                    case "hold":
                        held.append(reply)
                        continue
                yield reply
                yield from held
                held.clear()

    def _call(
        self, method: str, rule: Callable[..., Any], request: Any, context: grpc.ServicerContext
    ) -> Any:
        with _aborting(context):
            fault, reply = self._answer(method, rule, request, context)
            if fault is not None and fault.kind == "lose":
                raise Refusal(grpc.StatusCode.UNAVAILABLE, "Lost, as the test wants it.")
            return reply

    def _answer(
        self, method: str, rule: Callable[..., Any], request: Any, context: grpc.ServicerContext
    ) -> tuple[Fault | None, Any]:
        """Applies a message, unless a fault comes first; gives the fault that comes after it."""
        with self._lock:
            self._calls[method] += 1
        owner = self._owner(context)
        fault = self._faults.take(method)
        refusal = None
        if fault is not None and fault.kind == "fail":
            text = "Failed, as the test wants it."
            metadata = {"grpc_retry_pushback_ms": fault.pushback} if fault.pushback else {}
            raise Refusal(fault.code, text, **metadata)
        if fault is not None and fault.kind == "delay":
            time.sleep(fault.seconds)
            if not context.is_active():
                raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline passed.")
            limit = getattr(request, "timeout_milliseconds", 0) / 1000
            if 0 < limit <= fault.seconds:
                refusal = Fault("refuse", 1, problem="ITEM_TOO_LATE")
        if fault is not None and fault.kind == "refuse":
            refusal = fault
        with self._lock:
            self._table.sweep()
            arguments = (owner, request) if refusal is None else (owner, request, refusal)
            return fault, rule(*arguments)

    def _owner(self, context: grpc.ServicerContext) -> str:
        if self._tokens is None:
            return ""
        metadata = dict(context.invocation_metadata())
        token = str(metadata.get("authorization", "")).removeprefix("Bearer ")
        if token not in self._tokens:
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "The token must be one that is known.")
        return self._tokens[token]


@contextmanager
def _aborting(context: grpc.ServicerContext) -> Iterator[None]:
    """Lets a refusal end the call."""
    try:
        yield
    except Refusal as refusal:
        context.set_trailing_metadata(refusal.metadata)
        context.abort(refusal.code, str(refusal))
