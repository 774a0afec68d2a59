#!/usr/bin/env python3
"""Runs clang's thread-safety analysis or clang-tidy on files of a compilation database.

usage: run_clang.py {thread-safety,tidy} BUILD_DIR FILE...

BUILD_DIR holds compile_commands.json, made with clang and without precompiled headers (the preset
tsa). Two files at a time: each takes up to a gigabyte. Headers are left out, seen through the files
that include them; a .cc file that the database does not know is an error, for nothing builds it.
Prints what clang said of the files that it complains about.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

CLANG = "clang++-16"
TIDY = "clang-tidy-16"
JOBS = 2


def load_commands(build_dir):
    """{absolute path: (directory, compiler arguments, without launcher and output)}"""
    commands = {}
    for entry in json.loads((build_dir / "compile_commands.json").read_text()):
        arguments = shlex.split(entry["command"])
        compiler = next((i for i, a in enumerate(arguments) if os.path.basename(a) == CLANG), None)
        if compiler is None:
            sys.exit(f"run_clang: {build_dir} was not configured with {CLANG}: {arguments[0]}")
        arguments = arguments[compiler:]
        output = arguments.index("-o")
        del arguments[output:output + 2]
        commands[os.path.realpath(entry["file"])] = (entry["directory"], arguments)
    return commands


def run(mode, build_dir, path, command):
    """(path, whether clang was content, what it said)"""
    directory, arguments = command
    if mode == "tidy":
        call = [TIDY, "--quiet", "-p", str(build_dir), path]
    else:
        call = [*arguments, "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety"]
    result = subprocess.run(call, cwd=directory, capture_output=True, text=True, check=False)
    # clang-tidy's stderr is a count of suppressed warnings, unless it failed to parse the file.
    said = result.stdout + (result.stderr if mode != "tidy" or result.returncode else "")
    return path, result.returncode == 0, said


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("thread-safety", "tidy"):
        sys.exit(__doc__)
    mode, build_dir = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    commands = load_commands(build_dir)
    sources = [os.path.realpath(path) for path in sys.argv[3:] if path.endswith(".cc")]
    paths = [path for path in sources if path in commands]
    failed = len(sources) - len(paths)
    for path in sources:
        if path not in commands:
            print(f"{os.path.relpath(path)}: in no target of the build")
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = [pool.submit(run, mode, build_dir, path, commands[path]) for path in paths]
        for done, future in enumerate(concurrent.futures.as_completed(runs), start=1):
            path, content, said = future.result()
            if sys.stdout.isatty():
                print(f"\r\033[K[{done}/{len(paths)}] {os.path.relpath(path)}", end="", flush=True)
            if not content:
                failed += 1
                print(f"\n{os.path.relpath(path)}:\n{said}", flush=True)
    end = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{end}{mode}: {len(sources)} files, {failed} with errors")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
