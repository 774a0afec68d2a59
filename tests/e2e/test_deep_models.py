"""Model files that nest so deep that LibTorch would overflow its stack, and end the server."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Iterator

import grpc
import pytest
import torch
from e2e.control import CONFIG, Running, Times, ask, explicit, refused, write

DEEP = 20_000
PROTOCOL = b"\x80\x02"


def expression(text: str) -> Callable[[str], str]:
    """A line more in the model's code, whose first argument is x."""
    return lambda code: code.replace("    return ", f"    y = {text}\n    return ", 1)


def blocks(header: str, count: int) -> Callable[[str], str]:
    lines = [" " * (4 + i) + header for i in range(count)] + [" " * (4 + count) + "pass"]
    return lambda code: code.replace("    return ", "\n".join(lines) + "\n    return ", 1)


def nested(opening: str, middle: str, closing: str) -> Callable[[str], str]:
    return expression(opening * DEEP + middle + closing * DEEP)


SOURCES = {
    "parentheses": nested("(", "1", ")"),
    "lists": nested("[", "1", "]"),
    "calls": nested("torch.add(", "x", ", 1)"),
    "types": lambda code: code.replace(
        "  training : bool", "  training : bool\n  y : " + "List[" * DEEP + "int" + "]" * DEEP
    ),
    "minuses": expression("-" * 10 * DEEP + "1"),
    "nots": expression("not " * DEEP + "True"),
    "sum": expression("1" + "+1" * DEEP),
    "power": expression("2" + "**2" * DEEP),
    "subscripts": expression("x" + "[0]" * DEEP),
    "attributes": expression("x" + ".T" * 5 * DEEP),
    "called": expression("x" + "()" * 2 * DEEP),
    "ternary": nested("1 if True else (", "2", ")"),
    "ifs": blocks("if bool(x):", 4_000),
    "fors": blocks("for i in [1]:", 4_000),
    "elifs": expression("1\n    if x:\n      pass" + "\n    elif bool(x):\n      pass" * DEEP),
    "empty_lines": expression("1" + "\n" * 5 * DEEP),
}
LIST_OF_ONE = b"]("
TYPED = b"ctorch.jit._pickle\nrestore_type_tag\n](NeX"
TYPE = b"List[" * DEEP + b"int" + b"]" * DEEP
MANY = 10 * DEEP
PICKLES = {
    "tuples": b")" + b"\x85" * MANY,
    "marked_tuples": b"(" * MANY + b"t" * MANY,
    "nested_lists": LIST_OF_ONE * MANY + b"N" + b"e" * MANY,
    "nested_dicts": b"}(K\x01" * MANY + b"N" + b"u" * MANY,
    "by_memo": b")q\x00" + b"h\x00\x85q\x00" * MANY,
    "type_name": TYPED + len(TYPE).to_bytes(4, "little") + TYPE + b"\x86R",
}


# The definition of each number, which names the next.
CHAINS = {
    "functions": "def f{0}(x: Tensor) -> Tensor:\n  return __torch__.e2e.control.f{1}(x)\n",
    "classes": "class f{0}(Module):\n  a : __torch__.e2e.control.f{1}\n",
    "tuples": "class f{0}(NamedTuple):\n  a : List[__torch__.e2e.control.f{1}]\n",
    "strings": "class f{0}:\n  a : '__torch__.e2e.' 'control.f{1}'\n",
    "defaults": "def f{0}(x: int=__torch__.e2e.control.f{1}()) -> int:\n  return x\n",
}
LAST = "def f{0}(x: Tensor) -> Tensor:\n  return x\n"


def chain(kind: str, count: int, last: str) -> Callable[[str], str]:
    """f0, which the model names, names f1, and so on."""
    links = "".join(CHAINS[kind].format(i, i + 1) for i in range(count))
    named = expression("annotate(Optional[__torch__.e2e.control.f0], None)")
    if "def " in CHAINS[kind]:
        named = expression("__torch__.e2e.control.f0(" + ("x)" if kind == "functions" else ")"))
    return lambda code: links + last.format(count) + named(code)


def methods(count: int) -> Callable[[str], str]:
    links = "".join(
        f"  def m{i}(self, x: Tensor) -> Tensor:\n    return (self).m{i + 1}(x)\n"
        for i in range(count)
    )
    last = f"  def m{count}(self, x: Tensor) -> Tensor:\n    return x\n"
    return lambda code: expression("(self).m0(x)")(code) + links + last


def rewritten(ending: str, change: Callable[[bytes], bytes]) -> bytes:
    """A module that is well but for what its record `ending` holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        module = torch.jit.script(Times(2)).save_to_buffer()
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(module)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            wanted = name.endswith(ending)
            assert not wanted or change(data) != data
            new.writestr(name, change(data) if wanted else data)
    return buffer.getvalue()


def with_code(change: Callable[[str], str]) -> bytes:
    return rewritten("/control.py", lambda code: change(code.decode()).encode())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("deep")
    write(directory / "models", "well", 1, 3)
    with explicit(directory, "--load_model=well") as server:
        yield server


def put(running: Running, name: str, module: bytes) -> None:
    version = running.repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.pt").write_bytes(module)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(rows=8))


def assert_refused(running: Running, name: str, module: bytes, *words: str) -> None:
    """The server says why, and goes on."""
    put(running, name, module)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "model.pt is refused: ", *words):
        running.client.load_model(name)
    assert ask(running.client, "well") == 3


@pytest.mark.parametrize("name", SOURCES)
def test_deep_code_is_refused(running: Running, name: str) -> None:
    words = ("more than", "lines without code" if name == "empty_lines" else "levels", " in line ")
    assert_refused(
        running, name, with_code(SOURCES[name]), "code/__torch__/e2e/control.py", *words
    )


@pytest.mark.parametrize("kind", CHAINS)
def test_long_chains_of_definitions_are_refused(running: Running, kind: str) -> None:
    module = with_code(chain(kind, 5_000, ""))
    words = ("definitions that name each other, from __torch__.e2e.control.", " levels together")
    assert_refused(running, f"chain_of_{kind}", module, *words)


def test_long_chains_of_methods_are_refused(running: Running) -> None:
    words = ("definitions that name each other", " levels together")
    assert_refused(running, "chain_of_methods", with_code(methods(5_000)), *words)


def test_a_module_in_a_variable_is_refused(running: Running) -> None:
    change = expression("__torch__.e2e\n    z = y.control.f0(x)")
    module = with_code(lambda code: chain("functions", 1, LAST)(change(code)))
    words = (" names a module without what it uses of it",)
    assert_refused(running, "hidden", module, *words)


def test_a_hundred_functions_that_call_each_other_are_served(running: Running) -> None:
    put(running, "hundred", with_code(chain("functions", 100, LAST)))
    running.client.load_model("hundred")
    assert ask(running.client, "hundred") == 2


@pytest.mark.parametrize("record", ["data.pkl", "constants.pkl", "control.py.debug_pkl"])
@pytest.mark.parametrize("name", PICKLES)
def test_deep_pickles_are_refused(running: Running, name: str, record: str) -> None:
    pickle = PROTOCOL + b"(" + PICKLES[name] + b"t."
    module = rewritten(f"/{record}", lambda _: pickle)
    assert_refused(running, f"{name}_{record[:4]}", module, f"{record} ", " nests more than 512")


def test_a_list_that_grows_inside_another_is_refused(running: Running) -> None:
    lists = b"".join(b"]q" + bytes([i]) for i in range(200))
    grow = b"".join(b"h" + bytes([i]) + b"(h" + bytes([i + 1]) + b"e" for i in range(199))
    module = rewritten("/constants.pkl", lambda _: PROTOCOL + b"(" + lists + grow + b"t.")
    assert_refused(running, "grows", module, "constants.pkl puts values into")


def test_what_is_long_but_not_deep_is_served(running: Running) -> None:
    numbers = ", ".join(str(i * (-1) ** i) for i in range(100_000))
    module = with_code(expression(f"[{numbers}]\n    z = '{'([{-not ' * DEEP}'"))
    put(running, "long", module)
    running.client.load_model("long")
    assert ask(running.client, "long") == 2


def test_a_hundred_cases_are_served(running: Running) -> None:
    cases = "".join(f"    elif k == {i}:\n      y = {i}\n" for i in range(1, 100))
    switch = f"0\n    k = 7\n    if k == 0:\n      y = 1\n{cases}"
    module = with_code(expression(switch.rstrip("\n")))
    put(running, "cases", module)
    running.client.load_model("cases")
    assert ask(running.client, "cases") == 2
