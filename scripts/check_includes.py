#!/usr/bin/env python3
"""Checks which of our C++ files may include what.

Dependencies point one way: rpc → training → serving → batching → models → parallel → devices → base.
The engine (everything in server/ except rpc/ and the files of the root) does not include gRPC. No
translation unit includes both LibTorch and protobuf, because LibTorch ships an old copy of
protobuf's headers. The last two rules follow our own headers, as the compiler does.
"""

import pathlib
import re
import subprocess
import sys

# Folders that each folder of server/ may include.
_LEAVES = {"base", "telemetry"}
_RUN = {"decode", "graph", "parallel", "kernels", "devices", "models", "storage"} | _LEAVES
LAYERS = {
    "base": set(),
    "telemetry": {"base"},
    "storage": _LEAVES,
    "access": _LEAVES,
    "tracking": {"storage"} | _LEAVES,
    "remote": {"storage"} | _LEAVES,
    "admission": _LEAVES,
    "devices": _LEAVES,
    "shared_memory": {"storage"} | _LEAVES,
    "kernels": {"devices"} | _LEAVES,
    "parallel": {"kernels", "devices"} | _LEAVES,
    "graph": {"base", "devices", "kernels"},
    "models": {"decode", "graph", "parallel", "kernels", "devices", "storage"} | _LEAVES,
    "batching": _RUN,
    "serving": {"batching"} | _RUN,
    "decode": _LEAVES,
    "data": {"decode", "remote", "storage"} | _LEAVES,
    "datasets": {"access", "storage"} | _LEAVES,
    "training": {"serving", "batching", "tracking"} | _RUN,  # Trainers publish served versions.
    "jobs": {"data", "remote", "training", "serving", "batching", "tracking"} | _RUN,
    "rpc": {"access", "admission", "shared_memory", "data", "datasets", "remote", "training",
            "serving", "batching", "jobs", "tracking"} | _RUN,
}
# They compose the whole program.
ROOTS = {"server/main.cc", "server/server.cc"}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def is_torch(include):
    return include.startswith(("torch/", "ATen/", "c10/"))


def is_protobuf(include):
    return include.endswith(".pb.h") or include.startswith("google/protobuf/")


def is_grpc(include):
    return include.startswith(("grpc/", "grpc++/", "grpcpp/")) or include.endswith(".grpc.pb.h")


def includes_of(text):
    """The paths that `text` includes, in its order."""
    return [match[2] for match in _INCLUDE.finditer(text)]


def layer(path):
    """Returns "parallel" for server/parallel/split.h; "" for files outside the layers."""
    parts = path.split("/")
    return parts[1] if parts[0] == "server" and len(parts) > 2 else ""


class Includes:
    """Include graph of files, {path from the repository's root: text}."""

    def __init__(self, files):
        self._direct = {path: includes_of(text) for path, text in files.items()}

    def paths(self):
        return sorted(self._direct)

    def direct(self, path):
        return self._direct[path]

    def chain(self, path, wanted):
        """Returns the path from `path` to the nearest include that `wanted` accepts, or None."""
        ways, seen = [[path]], {path}
        for way in ways:
            for include in self._direct.get(way[-1], ()):
                if wanted(include):
                    return way[1:] + [include]
                if include in self._direct and include not in seen:
                    seen.add(include)
                    ways.append(way + [include])
        return None


def layer_errors(path, includes):
    own = layer(path)
    for include in includes.direct(path):
        other = layer(include)
        if path.startswith("client/") and include.startswith("server/"):
            yield f"{path}: includes {include}, but client/ knows nothing of server/"
        elif other == "rpc" and own != "rpc" and path.startswith("server/") and path not in ROOTS:
            yield f"{path}: includes {include}, but nothing includes rpc/"
        elif own and own not in LAYERS:
            yield f"{path}: server/{own}/ has no place among LAYERS"
        elif own and other and other != own and other not in LAYERS[own]:
            yield f"{path}: includes {include}, but {own}/ must not depend on {other}/"


def library_errors(path, includes):
    def found(wanted, rule):
        chain = includes.chain(path, wanted)
        if chain:
            yield f"{path}: {rule}: {' → '.join(chain)}"

    own = layer(path)
    if own and own != "rpc":
        yield from found(is_grpc, "the engine does not include gRPC")
    if own in ("parallel", "kernels", "devices"):
        yield from found(is_protobuf, f"{own}/ does not include protobuf")
    if own == "rpc":
        yield from found(is_torch, "rpc/ does not include LibTorch")
    else:
        torch = includes.chain(path, is_torch)
        protobuf = includes.chain(path, is_protobuf)
        if torch and protobuf:
            yield (f"{path}: sees LibTorch and protobuf at once: "
                   f"{' → '.join(torch)} and {' → '.join(protobuf)}")


def check(files):
    """Returns the errors of `files` ({path: text}), one per line."""
    includes = Includes(files)
    return [error for path in includes.paths()
            for rule in (layer_errors, library_errors)
            for error in dict.fromkeys(rule(path, includes))]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.h", "*.cc"],
        cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    files = {path: (root / path).read_text(encoding="utf-8")
             for path in listed if (root / path).is_file()}
    if not files:
        sys.exit("check_includes: no C++ files found")
    errors = check(files)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"check_includes: {len(files)} files, {len(errors)} errors")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
