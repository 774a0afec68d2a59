"""Dashboard of all servers: availability, errors, capacity and latency."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build
from braid_dashboards.panels import (
    BYTES, PER_SECOND, PLAIN, RATIO, RED, SECONDS, YELLOW, Query, graph, listing, number,
)  # fmt: skip

SERVER = ("job", "instance")

# Targets of jobs that have or had a Braid server.
_DOWN = (
    'up{job=~"$job",instance=~"$instance"} == 0 and on (job) '
    f"group by (job) (last_over_time({q.select('braid_build_info')}[$__range]))"
)
_FAULTS = q.rate("braid_requests_total", q.FAULTS)
_REQUESTS = q.rate("braid_requests_total")


def dashboard() -> Dashboard:
    return build(
        "braid-fleet",
        "Braid / Fleet",
        "All Braid servers: availability, errors, capacity and latency.",
        {
            "Now": now(),
            "Requests": requests(),
            "Devices": devices(),
            "Servers": servers(),
        },
    )


def now() -> list:
    unhealthy = f"count({q.select('braid_device_healthy')} == 0) or vector(0)"
    failed = q.total(q.select("braid_trainers", 'state="failed"'))
    fault_ratio = f"({q.total(_FAULTS)} or vector(0)) / {q.total(_REQUESTS)}"
    p99 = q.quantile(0.99, "braid_request_duration_seconds", q.INFERENCE, by=())
    any_is_bad = ((1, RED),)
    return [
        number("Servers", PLAIN, "Servers that Prometheus can scrape.",
               Query(q.count(q.select("braid_build_info"))), width=3),
        number("Servers down", PLAIN, "Unreachable targets of jobs with Braid servers.",
               Query(f"count({_DOWN}) or vector(0)"), limits=any_is_bad, width=3),
        number("Models", PLAIN, "Distinct models with a ready version on any server.",
               Query(q.count(q.total(q.select("braid_model_ready"), "model"))), width=3),
        number("Unhealthy devices", PLAIN,
               "Devices with a lost CUDA context. Their server is not ready until it is restarted.",
               Query(unhealthy), limits=any_is_bad, width=3),
        number("Failed trainers", PLAIN,
               "Trainers that accept only RestoreCheckpoint and DeleteTrainer.",
               Query(failed), limits=any_is_bad, width=3),
        number("Requests", PER_SECOND, "Completed RPCs of all methods.",
               Query(q.total(_REQUESTS)), width=3),
        number("Server errors", RATIO,
               "Fraction of RPCs that ended with a server or overload error.",
               Query(fault_ratio), limits=((0.001, YELLOW), (0.01, RED)), width=3),
        number("Inference p99", SECONDS, "99th percentile of the latency of inference requests.",
               Query(p99), width=3),
    ]  # fmt: skip


def requests() -> list:
    duration = "braid_request_duration_seconds"
    by_server = "{{instance}}"
    return [
        graph("Requests by method", PER_SECOND, "Completed RPCs.",
              Query(q.total(_REQUESTS, "method"), "{{method}}"), stacked=True, calcs=()),
        graph("Errors by code", PER_SECOND,
              "RPCs that did not end with OK. INVALID_ARGUMENT and NOT_FOUND are client errors; "
              "RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED indicate overload.",
              Query(q.total(q.rate("braid_requests_total", 'code!="OK"'), "code"), "{{code}}"),
              stacked=True, calcs=()),
        graph("Server errors", RATIO,
              "Fraction of RPCs that ended with a server or overload error.",
              Query(q.ratio(_FAULTS, _REQUESTS, SERVER) + f" or 0 * {q.total(_REQUESTS, *SERVER)}",
                    by_server), limits=((0.01, RED),)),
        graph("Inference latency", SECONDS,
              "Inference requests, unary and streamed, from arrival to reply: p50 and p99.",
              Query(q.quantile(0.5, duration, q.INFERENCE, by=SERVER), "{{instance}} p50"),
              Query(q.quantile(0.99, duration, q.INFERENCE, by=SERVER), "{{instance}} p99"),
              width=6, calcs=()),
        graph("Requests in flight", PLAIN,
              "Requests without a reply yet. The limit is --max_requests.",
              Query(q.total(q.select("braid_requests_in_flight"), *SERVER), by_server),
              width=6, calcs=("mean", "max")),
        graph("Bytes in flight", BYTES,
              "Bytes of all requests without a reply yet. The limit is --max_request_bytes.",
              Query(q.total(q.select("braid_request_bytes_in_flight"), *SERVER), by_server),
              width=6, calcs=("mean", "max")),
        graph("Access denied", PER_SECOND,
              "Calls with missing or invalid credentials, or without the required role.",
              Query(q.total(q.rate("braid_access_denied_total"), "reason"), "{{reason}}"),
              width=6, most=1, calcs=("max",)),
    ]  # fmt: skip


def devices() -> list:
    busy = q.total(q.rate("braid_device_busy_seconds_total"), *SERVER)
    devices = q.count(q.select("braid_device_info"), *SERVER)
    used, all_of_it = "braid_gpu_memory_used_bytes", "braid_gpu_memory_total_bytes"
    by_server = "{{instance}}"
    return [
        graph("Workers busy", RATIO,
              "Fraction of the time that workers are busy, averaged over a server's devices.",
              Query(f"{busy} / {devices}", by_server), most=1),
        graph("GPU utilization", RATIO,
              "Fraction of the time in which a kernel of any process ran (NVML), averaged over a "
              "server's GPUs.",
              Query(q.mean(q.select("braid_gpu_utilization_ratio"), *SERVER), by_server), most=1),
        graph("GPU memory", RATIO, "Memory in use by all processes, averaged over a server's GPUs.",
              Query(q.ratio(q.select(used), q.select(all_of_it), SERVER), by_server),
              most=1, limits=((0.95, RED),)),
    ]  # fmt: skip


def servers() -> list:
    started = q.highest(q.select("process_start_time_seconds"), *SERVER)
    memory = q.total(q.select("process_resident_memory_bytes"), *SERVER)
    cpu = q.total(q.rate("process_cpu_seconds_total"), *SERVER)
    columns = {
        "job": ("Job", "string"),
        "instance": ("Server", "string"),
        "version": ("Version", "string"),
        "Value #B": ("Uptime", SECONDS),
        "Value #C": ("Memory", BYTES),
        "Value #D": ("CPUs busy", PLAIN),
        "Value #E": ("Trainers", PLAIN),
    }
    files = q.ratio(q.select("process_open_fds"), q.select("process_max_fds"), SERVER)
    return [
        listing("Servers", "Versions and uptimes of all servers.", columns,
                Query(q.highest(q.select("braid_build_info"), *SERVER, "version")),
                Query(f"time() - {started}"),
                Query(memory),
                Query(cpu),
                Query(q.total(q.select("braid_trainers"), *SERVER)), width=24, height=6),
        graph("CPUs busy", PLAIN, "CPU time per second of the process; 1 is one core.",
              Query(cpu, "{{instance}}")),
        graph("Memory", BYTES, "Resident memory of the process.",
              Query(memory, "{{instance}}")),
        graph("File descriptors", RATIO, "Open file descriptors as a fraction of the limit.",
              Query(files, "{{instance}}"), limits=((0.8, RED),)),
    ]  # fmt: skip
