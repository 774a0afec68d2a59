"""Runs the image's server as Kubernetes would: not as root, as process 1, on a root filesystem that
nobody writes to."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from container.conftest import Image

STOP_SECONDS = 60

# In namespaces of its own: what it mounts goes with the process.
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
    """A process of the image, with the network of this machine. As a context it ends in the end."""

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
        # The server, not its parent, with which it would not go: it is another user's.
        if self._parent.poll() is None:
            os.kill(self._pid(), signal.SIGKILL)
        self._parent.wait(STOP_SECONDS)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        """The exit code, once the server has ended."""
        return self._parent.wait(STOP_SECONDS)

    @property
    def process(self) -> Path:
        """What the kernel says of the server's process."""
        return Path("/proc") / str(self._pid())

    def stop(self) -> int:
        """Asks the server to end, as an orchestrator does; its exit code."""
        os.kill(self._pid(), signal.SIGTERM)
        return self.wait()

    def _pid(self) -> int:
        pid = self._parent.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
