"""Exceptions for failed calls, one class per gRPC status code.

Invalid arguments that the client detects before sending (an unknown optimizer, an array of strings)
raise ValueError or TypeError instead.
"""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError

from braid import _protocol

_Status = _protocol.message("google.rpc.Status")
_BadRequest = _protocol.message("google.rpc.BadRequest")


class BraidError(Exception):
    """A call failed.

    code: gRPC status code.
    message: the server's message; equal to `str(error)`.
    violations: (field, description) for each invalid field of the request, for example
        ("inputs[0].shape", "inputs[0].shape: [20, 10] does not fit input 'x' …"). May be empty.
    attempts: number of attempts, including retries.
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
        """First invalid field of the request, for example "inputs[0].shape", or None."""
        return self.violations[0][0] if self.violations else None


class Cancelled(BraidError):
    """The call was cancelled, for example by closing the client."""

    code = grpc.StatusCode.CANCELLED


class Unknown(BraidError):
    """The server reported an unknown error."""

    code = grpc.StatusCode.UNKNOWN


class InvalidArgument(BraidError):
    """The request is invalid regardless of the server's state; `field` names the part."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(BraidError):
    """The timeout expired. It is unknown whether a trainer's operation was applied."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(BraidError):
    """The model, version or trainer does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(BraidError):
    """A trainer with this name exists."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(BraidError):
    """The caller lacks permission."""

    code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(BraidError):
    """A queue, a quota or memory is full, a message is too large, or S3 throttles the server."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(BraidError):
    """The trainer's state does not allow the call, for example `optim_step` without gradients."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(BraidError):
    """The sequence number was used for another request or by another client, or the trainer was
    replaced by another one with the same name."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(BraidError):
    """A value is out of range."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(BraidError):
    """The server lacks the method: it is older than this package, or not a Braid server."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(BraidError):
    """Internal error of the server."""

    code = grpc.StatusCode.INTERNAL


class Unavailable(BraidError):
    """The server cannot be reached or is stopping, after all retries."""

    code = grpc.StatusCode.UNAVAILABLE


class DataLoss(BraidError):
    """A trainer's update was interrupted, a stream of weights is incomplete, or a published version
    was not written."""

    code = grpc.StatusCode.DATA_LOSS


class Unauthenticated(BraidError):
    """The caller is not authenticated."""

    code = grpc.StatusCode.UNAUTHENTICATED


_BY_CODE = {error.code: error for error in BraidError.__subclasses__()}


def from_rpc_error(error: grpc.RpcError, attempts: int, address: str) -> BraidError:
    """Converts gRPC's error of the last of `attempts` calls to `address`."""
    kind = _BY_CODE.get(error.code(), Unknown)
    message = error.details() or f"{error.code().name} without a message"
    if kind is Unavailable:  # A wrong address is the most likely cause.
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
        # Details are optional: the caller must get the status in any case.
        return ()
