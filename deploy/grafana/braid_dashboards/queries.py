"""PromQL expressions of the dashboards."""

from __future__ import annotations

# Part of every selector: the servers selected at the top of the dashboard.
_SERVERS = ('job=~"$job"', 'instance=~"$instance"')

MODEL = 'model=~"$model"'
TRAINER = 'trainer=~"$trainer"'
GPU = 'gpu=~"$gpu"'
# Each request of a stream counts like a unary call.
INFERENCE = 'method=~"ModelInfer|ModelStreamInfer"'
# Codes for errors or overload of the server, as opposed to client errors.
FAULTS = 'code=~"DATA_LOSS|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED|UNAVAILABLE|UNKNOWN"'

_INTERVAL = "[$__rate_interval]"


def select(metric: str, *matchers: str) -> str:
    """Selects the metric's series of the selected servers."""
    return f"{metric}{{{','.join((*_SERVERS, *matchers))}}}"


def rate(counter: str, *matchers: str) -> str:
    """Rate of a counter per second, for each series."""
    return f"rate({select(counter, *matchers)}{_INTERVAL})"


def per_minute(counter: str, *matchers: str) -> str:
    """Rate of a counter per minute, for events that are rarer than one per second."""
    return f"60 * {rate(counter, *matchers)}"


def rise(counter: str, *matchers: str) -> str:
    """Increase of a counter from one point of the graph to the next."""
    return f"increase({select(counter, *matchers)}{_INTERVAL})"


def total(expression: str, *by: str) -> str:
    return _aggregate("sum", expression, by)


def highest(expression: str, *by: str) -> str:
    return _aggregate("max", expression, by)


def lowest(expression: str, *by: str) -> str:
    return _aggregate("min", expression, by)


def mean(expression: str, *by: str) -> str:
    return _aggregate("avg", expression, by)


def count(expression: str, *by: str) -> str:
    return _aggregate("count", expression, by)


def quantile(q: float, histogram: str, *matchers: str, by: tuple[str, ...]) -> str:
    """Quantile `q` of a histogram."""
    buckets = total(rate(f"{histogram}_bucket", *matchers), "le", *by)
    return defined(f"histogram_quantile({q}, {buckets})")


def average(histogram: str, *matchers: str, by: tuple[str, ...]) -> str:
    """Mean of a histogram's observations."""
    observed, count = rate(f"{histogram}_sum", *matchers), rate(f"{histogram}_count", *matchers)
    return defined(ratio(observed, count, by))


def defined(expression: str) -> str:
    """Drops series without observations, which are NaN and would fill the legend."""
    return f"{expression} >= 0"


def ratio(part: str, whole: str, by: tuple[str, ...]) -> str:
    return f"{total(part, *by)} / {total(whole, *by)}"


def with_gpu(expression: str) -> str:
    """Keeps the devices on the selected GPUs and adds the labels `gpu` and `uuid`. The GPU of a CPU
    device is empty."""
    gpus = select("braid_device_info", GPU)
    return f"{expression} * on (job, instance, device) group_left (gpu, uuid) {gpus}"


def _aggregate(operator: str, expression: str, by: tuple[str, ...]) -> str:
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"
