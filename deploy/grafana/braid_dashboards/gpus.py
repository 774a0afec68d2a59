"""Dashboard of the GPUs: utilization, memory, power, temperature and errors."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    BYTES, BYTES_PER_SECOND, CELSIUS, GREEN, HERTZ, PER_MINUTE, PLAIN, RATIO, RED, ROWS_PER_SECOND,
    SECONDS, WATTS, YELLOW, Query, bars, graph, listing, states,
)  # fmt: skip

EACH = ("instance", "gpu")
DEVICE = ("job", "instance", "device")
NAME = "{{instance}} GPU {{gpu}}"
DEVICE_NAME = "{{instance}} {{device}}"
UTILIZATION = q.highest(q.select("braid_gpu_utilization_ratio", q.GPU), *EACH)


def dashboard() -> Dashboard:
    return build(
        "braid-gpus",
        "Braid / GPUs",
        "Each GPU: utilization by the driver and by Braid's workers, memory, power, temperature "
        "and errors.",
        {
            "Utilization": utilization(),
            "Work of the devices": work(),
            "Memory": memory(),
            "Power and temperature": power(),
            "Errors": errors(),
            "Traffic": traffic(),
            "Hardware": hardware(),
        },
        (choice("gpu", "GPU", "braid_gpu_info"),),
    )


def of_each(metric: str, *matchers: str, name: str = NAME, by: tuple[str, ...] = ()) -> Query:
    """Query of a gauge for each GPU."""
    return Query(q.highest(q.select(metric, q.GPU, *matchers), *EACH, *by), name)


def busy(*by: str) -> str:
    """Fraction of the time that a device's worker is busy."""
    return q.with_gpu(q.total(q.rate("braid_device_busy_seconds_total"), *DEVICE, *by))


def utilization() -> list:
    per_server = ("job", "instance")
    all_busy = f"({busy()})"
    uneven = f"{q.highest(all_busy, *per_server)} - {q.lowest(all_busy, *per_server)}"
    return [
        graph("GPU utilization", RATIO,
              "Fraction of the time in which at least one kernel of any process ran (NVML). It "
              "does not show how much of the GPU the kernels used.",
              Query(UTILIZATION, NAME), most=1, width=16, height=12),
        bars("GPU utilization now", RATIO, "Latest value of the GPU utilization.",
             Query(UTILIZATION, NAME), most=1, height=12),
        graph("Workers busy", RATIO,
              "Fraction of the time that the worker of each device is busy, including copies and "
              "waits for its GPU. Idle workers on a utilized GPU: another process uses the GPU. "
              "Busy workers on an idle GPU: the host is the bottleneck, as with small kernels.",
              Query(busy(), DEVICE_NAME), most=1, width=16),
        graph("Busiest minus least busy worker", RATIO,
              "Difference between a server's workers. High if batches are too small to be split, "
              "or if one GPU is slower than the others.",
              Query(uneven, "{{instance}}"), most=1),
    ]  # fmt: skip


def work() -> list:
    rows = q.total(q.rate("braid_device_samples_total"), *DEVICE, "work")
    return [
        graph("Busy workers by phase", RATIO,
              "Busy time of the workers by phase, over all selected devices; 100 % is one device. "
              "High copy_in or copy_out: batches compute too little for their bytes. High reduce "
              "or broadcast: communication of gradients and weights dominates.",
              Query(q.total(busy("phase"), "phase"), "{{phase}}"), stacked=True, calcs=()),
        graph("Rows by device", ROWS_PER_SECOND, "Rows processed by each device.",
              Query(q.with_gpu(rows), DEVICE_NAME + " {{work}}"), stacked=True, calcs=()),
        graph("Rows per chunk", PLAIN,
              "Mean number of rows that a device processes at once. GPUs need large chunks.",
              Query(q.average("braid_device_chunk_size_rows", by=("instance", "device", "work")),
                    DEVICE_NAME + " {{work}}"), calcs=()),
        graph("Wait for a device, p99", SECONDS,
              "Time that batches and training operations wait for a device. Long waits mean that "
              "there are too few devices.",
              Query(q.quantile(0.99, "braid_device_queue_duration_seconds",
                               by=("instance", "device", "work")), DEVICE_NAME + " {{work}}"),
              width=12, calcs=()),
        states("Healthy devices",
               "A device is lost if its CUDA context is lost. Its server is then not ready and "
               "must be restarted.",
               Query(q.lowest(q.select("braid_device_healthy"), "instance", "device"), DEVICE_NAME),
               zero=("lost", RED), one=("healthy", GREEN)),
    ]  # fmt: skip


def memory() -> list:
    used, all_of_it = "braid_gpu_memory_used_bytes", "braid_gpu_memory_total_bytes"
    mig_used, mig_all = "braid_gpu_mig_memory_used_bytes", "braid_gpu_mig_memory_total_bytes"
    mig = (*EACH, "mig")
    owners = q.total(q.select("braid_device_memory_bytes"), *DEVICE, "owner")
    return [
        graph("Memory in use, fraction", RATIO,
              "Memory in use by all processes, as a fraction of the GPU's memory.",
              Query(q.ratio(q.select(used, q.GPU), q.select(all_of_it, q.GPU), EACH), NAME),
              most=1, limits=((0.95, RED),)),
        graph("Memory in use, bytes", BYTES, "Memory in use by all processes.", of_each(used)),
        graph("Braid's memory by owner", BYTES,
              "Memory of models and trainers on each device. A GPU's first worker also reports "
              "allocator (all LibTorch tensors) and cache (free memory that LibTorch's allocator "
              "keeps).",
              Query(q.with_gpu(owners), DEVICE_NAME + " {{owner}}"), calcs=()),
        graph("Memory busy", RATIO,
              "Fraction of the time in which memory was read or written (NVML).",
              of_each("braid_gpu_memory_utilization_ratio"), most=1, width=12),
        graph("Memory in use by MIG instance", RATIO,
              "Memory in use of each MIG instance, as a fraction of its memory.",
              Query(q.ratio(q.select(mig_used, q.GPU), q.select(mig_all, q.GPU), mig),
                    NAME + " MIG {{mig}}"), most=1, width=12),
    ]  # fmt: skip


def power() -> list:
    throttled = q.highest(q.select("braid_gpu_throttled", q.GPU), *EACH, "reason")
    at_some_time = f"max_over_time({q.select('braid_gpu_throttled', q.GPU)}[$__range] @ end()) > 0"
    return [
        graph("Power", WATTS, "Power draw and power limit of each GPU.",
              of_each("braid_gpu_power_watts"),
              of_each("braid_gpu_power_limit_watts", name=NAME + " limit"), dashed="/ limit$/",
              calcs=()),
        graph("Mean power", WATTS,
              "From the energy counter, so that it includes peaks between scrapes.",
              Query(q.total(q.rate("braid_gpu_energy_joules_total", q.GPU), *EACH), NAME)),
        graph("Temperature", CELSIUS, "Temperature of the die.",
              of_each("braid_gpu_temperature_celsius"), limits=((85, YELLOW), (90, RED))),
        graph("Clocks", HERTZ, "Of the multiprocessors (sm) and of the memory.",
              of_each("braid_gpu_clock_hertz", name=NAME + " {{clock}}", by=("clock",)), calcs=()),
        states("Clocks reduced",
               "GPUs with reduced clocks, by reason. power_cap is usual under load; the thermal "
               "ones, hardware and power_brake are not.",
               Query(f"{throttled} and on ({', '.join((*EACH, 'reason'))}) ({at_some_time})",
                     NAME + " {{reason}}"),
               zero=("full speed", GREEN), one=("reduced", YELLOW), none="Never", width=16),
    ]  # fmt: skip


def errors() -> list:
    ecc = q.total(q.per_minute("braid_gpu_ecc_errors_total", q.GPU), *EACH, "type")
    failed = q.total(q.per_minute("braid_gpu_sensor_errors_total", q.GPU), *EACH, "sensor")
    xids = q.select("braid_gpu_xid_errors_total", q.GPU)
    return [
        graph("Memory errors", PER_MINUTE,
              "ECC errors. A few corrected errors are harmless. An uncorrected error aborts the "
              "work on the GPU.",
              Query(ecc, NAME + " {{type}}"), most=1, calcs=()),
        graph("Driver errors (XID) since start", PLAIN,
              "Errors reported by the driver since the server's start, by their number in NVIDIA's "
              "catalogue.",
              Query(q.highest(xids, *EACH, "xid"), NAME + " XID {{xid}}"), most=1,
              calcs=("lastNotNull",)),
        graph("Sensor errors", PER_MINUTE, "Failed readings, which leave gaps in the graphs.",
              Query(failed, NAME + " {{sensor}}"), most=1, calcs=()),
    ]  # fmt: skip


def traffic() -> list:
    def bytes_over(link: str) -> Query:
        each = (*EACH, "direction")
        rates = q.total(q.rate(f"braid_gpu_{link}_bytes_total", q.GPU), *each)
        return Query(rates, NAME + " {{direction}}")

    return [
        graph("PCIe", BYTES_PER_SECOND, "Between GPU and host.", bytes_over("pcie"), width=12,
              calcs=()),
        graph("NVLink", BYTES_PER_SECOND, "Between GPUs, over all links.", bytes_over("nvlink"),
              width=12, calcs=()),
    ]  # fmt: skip


def hardware() -> list:
    columns = {
        "instance": ("Server", "string"),
        "gpu": ("GPU", "string"),
        "name": ("Name", "string"),
        "uuid": ("UUID", "string"),
        "driver_version": ("Driver", "string"),
    }
    each = q.highest(q.select("braid_gpu_info", q.GPU), *EACH, "name", "uuid", "driver_version")
    return [
        listing("GPUs", "Names and drivers of all GPUs.", columns, Query(each), width=24, height=6),
    ]
