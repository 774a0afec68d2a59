"""What the package raises when the server, or the way to it, says no.

Every class stands for one gRPC status code. Arguments that are wrong before anything is sent (an
unknown optimizer, an array of strings) are ValueError and TypeError instead.
"""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError

from braid import _protocol

_Status = _protocol.message("google.rpc.Status")
_BadRequest = _protocol.message("google.rpc.BadRequest")


class BraidError(Exception):
    """A call failed.

    code: the gRPC status code.
    message: what the server said; also `str(error)`.
    violations: (field, description) for each field of the request that the server found wrong,
        as in ("inputs[0].shape", "expected [-1, 784], got [20, 10]"). Empty unless it named any.
    attempts: how many times the call was sent.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(
        self, message: str, violations: tuple[tuple[str, str], ...] = (), attempts: int = 1
    ) -> None:
        super().__init__(message)
        self.message = message
        self.violations = violations
        self.attempts = attempts

    @property
    def field(self) -> str | None:
        """The first field that the server found wrong, as in "inputs[0].shape", or None."""
        return self.violations[0][0] if self.violations else None


class Cancelled(BraidError):
    """The call was cancelled, as by closing the client while it ran."""

    code = grpc.StatusCode.CANCELLED


class Unknown(BraidError):
    """The server failed without saying how."""

    code = grpc.StatusCode.UNKNOWN


class InvalidArgument(BraidError):
    """The request is wrong, whatever the server's state; `field` says where."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(BraidError):
    """The timeout ran out. Whether an operation of a trainer was applied is not known."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(BraidError):
    """There is no such model, version or trainer."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(BraidError):
    """A trainer of this name exists."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(BraidError):
    """The caller may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(BraidError):
    """A queue or the memory of a device is full, or a message is too large."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(BraidError):
    """The trainer is not in the state for this, as with no gradients for `optim_step`."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(BraidError):
    """The sequence number was used already, for another request or by another client of the
    trainer; or another trainer has the name by now."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(BraidError):
    """A value lies outside its range."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(BraidError):
    """The server has no such method: it is older than this package, or no Braid."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(BraidError):
    """A fault of the server."""

    code = grpc.StatusCode.INTERNAL


class Unavailable(BraidError):
    """The server cannot be reached or is stopping, after every attempt."""

    code = grpc.StatusCode.UNAVAILABLE


class DataLoss(BraidError):
    """A trainer's update was interrupted halfway, or a stream of weights is incomplete."""

    code = grpc.StatusCode.DATA_LOSS


class Unauthenticated(BraidError):
    """The server does not know the caller."""

    code = grpc.StatusCode.UNAUTHENTICATED


_BY_CODE = {error.code: error for error in BraidError.__subclasses__()}


def from_rpc_error(error: grpc.RpcError, attempts: int, address: str) -> BraidError:
    """The error that stands for what gRPC raised at the last of `attempts` calls to `address`."""
    kind = _BY_CODE.get(error.code(), Unknown)
    message = error.details() or f"{error.code().name} without a message"
    if kind is Unavailable:  # Then the address is what to look at first.
        message = f"{address}: {message}"
    return kind(message, _violations(error), attempts)


def _violations(error: grpc.RpcError) -> tuple[tuple[str, str], ...]:
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return ()
    try:
        status = _Status.FromString(details)
        return tuple(
            (violation.field, violation.description)
            for detail in status.details
            if detail.type_url.rpartition("/")[2] == "google.rpc.BadRequest"
            for violation in _BadRequest.FromString(detail.value).field_violations
        )
    except DecodeError:
        # Details only add to the status: it must reach the caller without them too.
        return ()
