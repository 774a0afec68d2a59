"""Runs the image's server like Kubernetes: as process 1, not as root, on a read-only root
filesystem."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from container.conftest import Image

STOP_SECONDS = 60

# Runs in new namespaces, so that its mounts disappear with the process.
_ENTER = r"""
set -e
root=$1 models=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind "$models" "$root/models"
exec chroot "$root" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups \
  --no-new-privs --bounding-set=-all "$@"
"""
_UNSHARE = ["unshare", "--mount", "--pid", "--fork"]


class Container:
    """Process of the image on this machine's network. As a context manager, it is stopped at the
    end."""

    def __init__(self, image: Image, models: Path, *flags: str, log: Path) -> None:
        self._image = image
        self._log = log
        self._enter = [str(image.root), str(models), image.config["User"]]
        self._command = [*image.config["Entrypoint"], *flags]

    def __enter__(self) -> Container:
        environment = dict(entry.split("=", 1) for entry in self._image.config["Env"])
        with self._log.open("wb") as log:
            self._parent = subprocess.Popen(
                [*_UNSHARE, "sh", "-c", _ENTER, "sh", *self._enter, *self._command],
                env={**environment, "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        # Kills the server itself: as another user's process, it does not end with its parent.
        if self._parent.poll() is None:
            os.kill(self._pid(), signal.SIGKILL)
        self._parent.wait(STOP_SECONDS)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        """Waits until the server has exited and returns its exit code."""
        return self._parent.wait(STOP_SECONDS)

    @property
    def process(self) -> Path:
        """Returns the folder of the server's process in /proc."""
        return Path("/proc") / str(self._pid())

    def stop(self) -> int:
        """Sends SIGTERM, like an orchestrator, and returns the exit code."""
        os.kill(self._pid(), signal.SIGTERM)
        return self.wait()

    def _pid(self) -> int:
        pid = self._parent.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
