"""Dashboard of the GPUs: utilization, memory, power, temperature and errors."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    BYTES, BYTES_PER_SECOND, CELSIUS, HERTZ, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, WATTS,
    YELLOW, Query, bars, graph, listing, states,
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
    return [
        graph("GPU utilization", RATIO,
              "Fraction of the time in which at least one kernel of any process ran (NVML). It "
              "does not show how much of the GPU the kernels used.",
              Query(UTILIZATION, NAME), most=1, width=16),
        bars("GPU utilization now", RATIO, "Latest value of the GPU utilization.",
             Query(UTILIZATION, NAME), most=1),
        graph("Workers busy", RATIO,
              "Fraction of the time that the worker of each device is busy, including copies and "
              "waits for its GPU. Idle workers on a utilized GPU: another process uses the GPU. "
              "Busy workers on an idle GPU: the host is the bottleneck, as with small kernels.",
              Query(busy(), DEVICE_NAME), most=1, width=16),
        listing("GPUs", "Names and drivers of all GPUs.",
                {
                    "instance": ("Server", "string"),
                    "gpu": ("GPU", "string"),
                    "name": ("Name", "string"),
                    "uuid": ("UUID", "string"),
                    "driver_version": ("Driver", "string"),
                },
                Query(q.highest(q.select("braid_gpu_info", q.GPU), *EACH, "name", "uuid",
                                "driver_version")), width=8),
    ]  # fmt: skip


def work() -> list:
    per_server = ("job", "instance")
    all_busy = f"({busy()})"
    uneven = f"{q.highest(all_busy, *per_server)} - {q.lowest(all_busy, *per_server)}"
    rows = q.total(q.rate("braid_device_samples_total"), *DEVICE, "work")
    return [
        graph("Busy by phase", RATIO,
              "Busy time of the workers by phase, over all selected devices; 1 is one device. High "
              "copy_in or copy_out: batches compute too little for their bytes. High reduce or "
              "broadcast: communication of gradients and weights dominates.",
              Query(q.total(busy("phase"), "phase"), "{{phase}}"), stacked=True, calcs=()),
        graph("Spread between devices", RATIO,
              "Difference between a server's busiest and idlest device. High if batches are too "
              "small to be split, or if one GPU is slower than the others.",
              Query(uneven, "{{instance}}"), most=1),
        graph("Rows", ROWS_PER_SECOND, "Rows processed by each device.",
              Query(q.with_gpu(rows), DEVICE_NAME + " {{work}}"), stacked=True),
        graph("Chunk size", PLAIN,
              "Mean number of rows that a device processes at once. GPUs need large chunks.",
              Query(q.average("braid_device_chunk_size_rows", by=("instance", "device", "work")),
                    DEVICE_NAME + " {{work}}")),
        graph("Wait for a device", SECONDS,
              "p99 of the time that batches and training operations wait for a device. Long waits "
              "mean that there are too few devices.",
              Query(q.quantile(0.99, "braid_device_queue_duration_seconds",
                               by=("instance", "device", "work")), DEVICE_NAME + " {{work}}")),
        states("Healthy devices",
               "A device is lost if its CUDA context is lost. Its server is then not ready and "
               "must be restarted.",
               Query(q.lowest(q.select("braid_device_healthy"), "instance", "device"), DEVICE_NAME),
               zero="lost", one="healthy", bad=0, width=8),
    ]  # fmt: skip


def memory() -> list:
    used, all_of_it = "braid_gpu_memory_used_bytes", "braid_gpu_memory_total_bytes"
    mig_used, mig_all = "braid_gpu_mig_memory_used_bytes", "braid_gpu_mig_memory_total_bytes"
    mig = (*EACH, "mig")
    owners = q.total(q.select("braid_device_memory_bytes"), *DEVICE, "owner")
    return [
        graph("Memory in use", RATIO,
              "Memory in use by all processes, as a fraction of the GPU's memory.",
              Query(q.ratio(q.select(used, q.GPU), q.select(all_of_it, q.GPU), EACH), NAME),
              most=1, limits=((0.95, RED),)),
        graph("Bytes in use", BYTES, "Memory in use by all processes.", of_each(used)),
        graph("Braid's memory by owner", BYTES,
              "Memory of models and trainers on each device. A GPU's first worker also reports "
              "allocator (all LibTorch tensors) and cache (free memory that LibTorch's allocator "
              "keeps).",
              Query(q.with_gpu(owners), DEVICE_NAME + " {{owner}}")),
        graph("Memory bandwidth", RATIO,
              "Fraction of the time in which memory was read or written (NVML).",
              of_each("braid_gpu_memory_utilization_ratio"), most=1),
        graph("MIG instances", RATIO,
              "Memory in use of each MIG instance, as a fraction of its memory.",
              Query(q.ratio(q.select(mig_used, q.GPU), q.select(mig_all, q.GPU), mig),
                    NAME + " MIG {{mig}}"), most=1),
    ]  # fmt: skip


def power() -> list:
    return [
        graph("Power", WATTS, "Power draw and power limit of each GPU.",
              of_each("braid_gpu_power_watts"),
              of_each("braid_gpu_power_limit_watts", name=NAME + " limit")),
        graph("Power by energy", WATTS,
              "Mean power from the energy counter; includes peaks between scrapes.",
              Query(q.total(q.rate("braid_gpu_energy_joules_total", q.GPU), *EACH), NAME)),
        graph("Temperature", CELSIUS, "Temperature of the die.",
              of_each("braid_gpu_temperature_celsius"), limits=((85, YELLOW), (90, RED))),
        graph("Clocks", HERTZ, "Of the multiprocessors (sm) and of the memory.",
              of_each("braid_gpu_clock_hertz", name=NAME + " {{clock}}", by=("clock",))),
        states("Throttled",
               "Why clocks are held down. power_cap is usual under load; the thermal ones, "
               "hardware and power_brake are not.",
               of_each("braid_gpu_throttled", name=NAME + " {{reason}}", by=("reason",)),
               zero="no", one="throttled", bad=1, width=16),
    ]  # fmt: skip


def errors() -> list:
    ecc = q.total(q.rise("braid_gpu_ecc_errors_total", q.GPU), *EACH, "type")
    failed = q.total(q.rise("braid_gpu_sensor_errors_total", q.GPU), *EACH, "sensor")
    xids = q.select("braid_gpu_xid_errors_total", q.GPU)
    return [
        graph("Memory errors", PLAIN,
              "ECC errors. A few corrected errors are harmless. An uncorrected error aborts the "
              "work on the GPU.",
              Query(ecc, NAME + " {{type}}")),
        graph("XID errors", PLAIN,
              "Errors reported by the driver since the server's start, by their number in NVIDIA's "
              "catalogue.",
              Query(q.highest(xids, *EACH, "xid"), NAME + " XID {{xid}}")),
        graph("Sensor errors", PLAIN, "Failed readings, which leave gaps in the graphs.",
              Query(failed, NAME + " {{sensor}}")),
    ]  # fmt: skip


def traffic() -> list:
    def bytes_over(link: str) -> Query:
        each = (*EACH, "direction")
        rates = q.total(q.rate(f"braid_gpu_{link}_bytes_total", q.GPU), *each)
        return Query(rates, NAME + " {{direction}}")

    return [
        graph("PCIe", BYTES_PER_SECOND, "Between GPU and host.", bytes_over("pcie"), width=12),
        graph("NVLink", BYTES_PER_SECOND, "Between GPUs, over all links.", bytes_over("nvlink"),
              width=12),
    ]  # fmt: skip
